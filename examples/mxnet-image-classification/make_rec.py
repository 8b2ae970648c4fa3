"""Turns a folder of images into RecordIO files for train_imagenet.py and train_gluon.py.

    python make_rec.py photos data/flowers --val-ratio 0.1 --resize 256

Every sub-folder of the folder is a class; classes are numbered in alphabetical order. For PREFIX it writes PREFIX.rec (the images),
PREFIX.idx (where each begins), PREFIX.lst (number, label and path of each, with tabs between) and PREFIX.classes (a name per line).
With --val-ratio the images are divided: PREFIX-train.rec, PREFIX-val.rec and so on. Training and validation images that come in two
folders need two runs, the second with --classes PREFIX.classes of the first, so that both number the classes alike.
"""

import argparse
import io
import logging
import os
import random
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import mxnet as mx
from PIL import Image

from common.files import on_disk, writing

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

ENDINGS = (".jpg", ".jpeg", ".png")


class ImagesError(Exception):
    """There is something wrong with the images. The message names the file or folder."""


def find_images(folder, classes=None):
    """Paths relative to ``folder`` with their labels, and the names of the classes, which are the sub-folders or those given."""
    if not os.path.isdir(folder):
        raise ImagesError(f"{folder} is not a folder")
    folders = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    if not folders:
        raise ImagesError(f"{folder} has no sub-folders; put the images of each class into a separate folder")
    classes = folders if classes is None else classes
    unknown = sorted(set(folders) - set(classes))
    if unknown:
        raise ImagesError(f"{os.path.join(folder, unknown[0])} is not a class of --classes")
    images = []
    for name in folders:
        for parent, _, files in sorted(os.walk(os.path.join(folder, name), followlinks=True)):
            images += [
                (os.path.relpath(os.path.join(parent, file), folder), classes.index(name))
                for file in sorted(files)
                if file.lower().endswith(ENDINGS)
            ]
    if not images:
        raise ImagesError(f"{folder} has no images in its sub-folders; allowed endings: {', '.join(ENDINGS)}")
    return images, classes


def divide(images, ratio):
    """The images of each class in two parts, the second with ``ratio`` of them, rounded."""
    labels = {}
    for image in images:
        labels.setdefault(image[1], []).append(image)
    parts = ([], [])
    for own in labels.values():
        count = round(len(own) * ratio)
        parts[0].extend(own[count:])
        parts[1].extend(own[:count])
    return parts


def encoded(path, resize, quality):
    """The image file as it is or, with ``resize``, as a JPEG whose shorter side has at most this number of pixels.

    Either way the image is decoded: training would stop at a broken one.
    """
    try:
        with Image.open(path) as image:
            image.load()
            shorter = min(image.size)
            if resize is None or shorter <= resize:
                with open(path, "rb") as file:
                    return file.read()
            size = tuple(max(resize, round(side * resize / shorter)) for side in image.size)
            buffer = io.BytesIO()
            image.convert("RGB").resize(size, Image.BICUBIC).save(buffer, "JPEG", quality=quality)
            return buffer.getvalue()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImagesError(f"{path} cannot be read ({error})") from None


def in_order(work, items, threads):
    """``work(item)`` for all items, computed a little ahead by several threads, as futures in the order of the items."""
    with ThreadPoolExecutor(threads) as pool:
        waiting = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > 4 * threads:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()
        finally:
            for future in waiting:
                future.cancel()


def write(prefix, folder, images, args):
    """Write one set of files. They get their names when all are complete. Returns the number of images left out."""
    ends = ("rec", "idx", "lst")
    own = {end: f"{prefix}.{end}.part" for end in ends}
    left_out = written = 0
    try:
        with writing(f"{prefix}.rec", ImagesError):
            record = mx.recordio.MXIndexedRecordIO(own["idx"], own["rec"], "w")
            # Closed here in any case: otherwise the garbage collector may end the generator in one of its own threads, which cannot join
            # itself.
            futures = in_order(lambda image: encoded(os.path.join(folder, image[0]), args.resize, args.quality), images, args.num_thread)
            with open(own["lst"], "w", encoding="utf-8") as listing, closing(futures):
                for (path, label), future in zip(images, progress(futures, len(images), os.path.basename(prefix))):
                    try:
                        content = future.result()
                    except ImagesError as error:
                        if not args.skip_broken:
                            raise
                        logging.warning("left out: %s", error)
                        left_out += 1
                        continue
                    record.write_idx(written, mx.recordio.pack(mx.recordio.IRHeader(0, float(label), written, 0), content))
                    listing.write(f"{written}\t{label}\t{path}\n")
                    written += 1
            size = record.tell()
            record.close()
            if not written:
                raise ImagesError(f"{prefix}.rec would have no images")
            on_disk(own["rec"], size)
            for end in ends:
                os.replace(own[end], f"{prefix}.{end}")
    finally:
        for path in own.values():
            if os.path.exists(path):
                os.remove(path)
    print(f"{prefix}.rec: {written} images, {os.path.getsize(prefix + '.rec') / 1e6:.1f} MB")
    return left_out


def progress(items, total, title):
    """Items as they come, with a progress bar or, without tqdm or a terminal, a line for every tenth."""
    if tqdm is not None and sys.stderr.isatty():
        yield from tqdm(items, total=total, desc=title, unit="image")
        return
    for i, item in enumerate(items, 1):
        yield item
        if i * 10 // total > (i - 1) * 10 // total:
            print(f"{title}: {i} of {total} images", file=sys.stderr)


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog="example: python make_rec.py photos data/flowers --val-ratio 0.1 --resize 256 -- exit codes: 0 images written, 1 "
        "something is wrong with an image or folder (one line says what), 2 wrong argument",
    )
    parser.add_argument("folder", help="the images, in a sub-folder per class")
    parser.add_argument("prefix", help="path of the files to write, without an ending")
    parser.add_argument("--val-ratio", type=float, default=0.0, help="share of each class to validate with, 0 to below 1")
    parser.add_argument("--resize", type=int, help="make the shorter side of larger images so many pixels; they become JPEG")
    parser.add_argument("--quality", type=int, default=95, help="of the JPEG files that --resize makes, 1 to 95")
    parser.add_argument("--classes", metavar="FILE", help="names of the classes, one a line, as an earlier run wrote them")
    parser.add_argument("--num-thread", type=int, default=os.cpu_count(), help="threads that read and resize")
    parser.add_argument("--seed", type=int, default=0, help="of the order, and of the division by --val-ratio")
    parser.add_argument("--skip-broken", action="store_true", help="leave out images that cannot be read, with a line for each")
    args = parser.parse_args(argv)
    for name, low, high in (("resize", 1, 1 << 16), ("quality", 1, 95), ("num_thread", 1, 1024)):
        value = getattr(args, name)
        if value is not None and not low <= value <= high:
            parser.error(f"--{name.replace('_', '-')} {value} is not allowed; allowed: {low} to {high}")
    if not 0 <= args.val_ratio < 1:
        parser.error(f"--val-ratio {args.val_ratio} is not allowed; allowed: 0 to below 1")
    return args


def make(args):
    """Write the files that the options ask for; returns the number of images left out."""
    names = None
    if args.classes is not None:
        try:
            with open(args.classes, encoding="utf-8") as file:
                names = file.read().split("\n")[:-1]
        except OSError as error:
            raise ImagesError(f"--classes {args.classes} cannot be read ({error.strerror})") from None
    images, classes = find_images(args.folder, names)
    random.Random(args.seed).shuffle(images)
    os.makedirs(os.path.dirname(args.prefix) or ".", exist_ok=True)
    parts = {"": images}
    if args.val_ratio:
        parts = dict(zip(("-train", "-val"), divide(images, args.val_ratio)))
        if not parts["-val"]:
            raise ImagesError(f"--val-ratio {args.val_ratio} of the images of any class in {args.folder} is none")
    left_out = sum(write(args.prefix + part, args.folder, own, args) for part, own in parts.items())
    with open(args.prefix + ".classes", "w", encoding="utf-8") as file:
        file.writelines(name + "\n" for name in classes)
    print(f"{args.prefix}.classes: {len(classes)} classes")
    return left_out


def main():
    logging.basicConfig(format="%(message)s")
    try:
        left_out = make(parse_args())
    except ImagesError as error:
        sys.exit(f"make_rec.py: error: {error}")
    if left_out:
        print(f"{left_out} images could not be read and were left out")


if __name__ == "__main__":
    main()
