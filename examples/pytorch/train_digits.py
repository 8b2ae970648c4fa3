"""Trains a small convnet on handwritten digits, data-parallel: with DistributedDataParallel, then with ScheduledOptimizer.

    torchrun --nproc-per-node 2 train_digits.py

Both trainings start with the same weights, and with two ranks they end with the same weights, bit for bit. The network of one machine is
too fast to show a gain. So the kernel slows down the connections between the ranks, without privileges, until communication takes as long
as computation.
"""

import argparse
import logging
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from prophet_mx.quantities import format_rate, parse_rate
from prophet_mx.torch import ScheduledOptimizer

TRAINING, VALIDATION = 1437, 360  # images
SO_MAX_PACING_RATE = 47  # Linux: limit on the bytes/s that a socket sends
NOT_TIMED = 10  # iterations at the beginning, in which a plan is made


def parse_args():
    parser = argparse.ArgumentParser(
        description="Train a small convnet on handwritten digits with PyTorch, without and with prophet_mx.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=5, help="passes over the training images")
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and iteration")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate")
    parser.add_argument(
        "--rate",
        default="auto",
        help="most that each rank sends to another, such as 300Mbit; 'auto': communication takes as long as computation; 'off': no limit",
    )
    parser.add_argument("--require-accuracy", type=float, default=0.95, help="exit with an error if the validation accuracy is lower")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with 'torchrun --nproc-per-node 2 train_digits.py'")
    return args


def digits():
    """scikit-learn's digits: images and labels to train with, the same to validate with."""
    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(data.target)
    places = range(len(labels))
    training, validation = train_test_split(places, train_size=TRAINING, test_size=VALIDATION, stratify=data.target, random_state=0)
    return images[training], labels[training], images[validation], labels[validation]


def convnet():
    """Six convolutions with batch norm in three stages, and a dense layer."""
    layers, channels = [], 1
    for filters in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(channels, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters), nn.ReLU()]
            channels = filters
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, 10))


def slow_down(rate):
    """From now on no TCP connection that this process has sends more than ``rate`` bytes/s."""
    for name in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # not a socket
        with connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)


def iteration(model, optimizer, images, labels):
    optimizer.zero_grad()
    cross_entropy(model(images), labels).backward()
    optimizer.step()


def compute_seconds(data, args):
    """The time of an iteration on the slowest rank without communication."""
    net = convnet()
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    images, labels = (part[: args.batch_size] for part in data[:2])
    dist.barrier()
    times = []
    for _ in range(2 * NOT_TIMED):
        began = time.perf_counter()
        iteration(net, optimizer, images, labels)
        times.append(time.perf_counter() - began)
    slowest = torch.tensor(statistics.median(times[NOT_TIMED:]))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def link(data, args):
    """The links' rate in bytes/s, or None for no limit, and a sentence about it."""
    ranks = dist.get_world_size()
    if args.rate == "off" or ranks == 1:
        return None, "links as they are"
    sent = 2 * (ranks - 1) / ranks * sum(each.numel() * each.element_size() for each in convnet().parameters())  # by each rank
    seconds = compute_seconds(data, args)
    rate = sent / seconds if args.rate == "auto" else parse_rate(args.rate)
    return int(rate), f"links of {format_rate(rate)}: communication takes {sent / rate / seconds:.1f} times as long as computation (rho)"


def train(scheduled, data, rate, args):
    """Train from the same initial weights by one of the methods: the model, its validation accuracy, and images per second of all ranks."""
    torch.manual_seed(0)
    net = convnet()
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    if scheduled:
        model, optimizer = net, ScheduledOptimizer(net, optimizer)  # the line that prophet_mx needs
    else:
        model = DistributedDataParallel(net)
    dist.barrier()
    if rate is not None:
        slow_down(rate)

    images, labels, validation_images, validation_labels = data
    ranks, each = dist.get_world_size(), args.batch_size
    done = began = 0
    for epoch in range(args.epochs):
        order = torch.randperm(TRAINING, generator=torch.Generator().manual_seed(epoch))[dist.get_rank() :: ranks]
        for batch in order[: TRAINING // ranks // each * each].split(each):
            if done == NOT_TIMED:
                began = time.perf_counter()
            iteration(model, optimizer, images[batch], labels[batch])
            done += 1
    net.eval()
    with torch.no_grad():  # waits for the last updates
        right = (net(validation_images).argmax(1) == validation_labels).float().mean().item()
    speed = (done - NOT_TIMED) * each * ranks / (time.perf_counter() - began)
    if scheduled:
        optimizer.close()
    return net, right, speed


def main():
    args = parse_args()
    logging.basicConfig(format="%(name)s: %(message)s")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = digits()
    rate, told = link(data, args)
    results = [train(scheduled, data, rate, args) for scheduled in (False, True)]
    [(plain, right, speed), (net, our_right, our_speed)] = results
    same = all(torch.equal(*pair) for pair in zip(plain.state_dict().values(), net.state_dict().values()))
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, {told}")
        print(f"DistributedDataParallel  validation accuracy {right:.4f}  {speed:,.0f} images/s")
        print(f"ScheduledOptimizer       validation accuracy {our_right:.4f}  {our_speed:,.0f} images/s  {our_speed / speed:.2f} times")
        print(f"weights and statistics   {'the same, bit for bit' if same else 'not the same'}")
    ranks = dist.get_world_size()
    dist.destroy_process_group()
    if ranks == 2 and not same:  # with more, sums depend on their order
        sys.exit("with two ranks the weights should be the same")
    if our_right < args.require_accuracy:
        sys.exit(f"validation accuracy {our_right:.4f} is lower than the required {args.require_accuracy}")


if __name__ == "__main__":
    main()
