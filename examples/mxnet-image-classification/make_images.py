"""Draws a folder of small pictures to try the training scripts with: one sub-folder per class, as make_rec.py reads it.

    python make_images.py pictures --classes 6 --per-class 16

A class is a colour and a direction of stripes, on noise: easy to learn, and of different sizes as photographs are.
"""

import argparse
import colorsys
import os

import numpy as np
from PIL import Image


def picture(random, hue, angle, size):
    """Stripes of a hue at an angle (radians), ``size`` is (height, width): an array of bytes (height, width, 3)."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    wave = np.sin((rows * np.sin(angle) + columns * np.cos(angle)) / 2 + random.uniform(0, 2 * np.pi))
    colour = np.array(colorsys.hsv_to_rgb(hue, 0.8, 200))
    image = colour * (0.7 + 0.3 * wave[..., None]) + random.normal(0, 20, size + (3,))
    return image.clip(0, 255).astype("uint8")


def write_folder(folder, classes, per_class, side, seed):
    """Write ``per_class`` JPEG files for each of ``classes``, with sides of ``side`` to 1.5 times as many pixels."""
    random = np.random.RandomState(seed)
    for number in range(classes):
        own = os.path.join(folder, f"class{number:02}")
        os.makedirs(own, exist_ok=True)
        for i in range(per_class):
            size = tuple(random.randint(side, side * 3 // 2 + 1, 2))
            image = picture(random, number / classes, np.pi * number / classes, size)
            Image.fromarray(image).save(os.path.join(own, f"{i:03}.jpg"), quality=95)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("folder", help="where to write; made if missing")
    parser.add_argument("--classes", type=int, default=6, help="number of classes")
    parser.add_argument("--per-class", type=int, default=16, help="pictures of each")
    parser.add_argument("--side", type=int, default=40, help="shortest side in pixels")
    parser.add_argument("--seed", type=int, default=0, help="other pictures with another seed")
    args = parser.parse_args()
    if min(args.classes, args.per_class, args.side) < 1:
        parser.error("--classes, --per-class and --side are at least 1")
    write_folder(args.folder, args.classes, args.per_class, args.side, args.seed)
    print(f"{args.classes * args.per_class} pictures of {args.classes} classes in {args.folder}")


if __name__ == "__main__":
    main()
