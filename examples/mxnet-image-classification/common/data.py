"""The images of one worker: its own part of a RecordIO file, or one synthetic batch over and over."""

import mxnet as mx
import numpy as np

from .options import OptionError

SYNTHETIC_BATCHES = 100


class EpochIter(mx.io.DataIter):
    """A fixed number of batches per epoch, drawn again for each epoch.

    Everything random in an epoch (order, augmentation, dropout) starts from a number made of seed, epoch and worker. So an epoch is
    the same whether it follows others or is the first after a resume. And all workers do the same number of batches: parts of a
    file may differ by some images, but in dist_sync workers wait for each other.

    Parameters
    ----------
    make : from a random seed to an iterator, which is reset where it ends too early.
    batches : of an epoch.
    described : the iterator's provide_data and provide_label, of one array each.
    """

    def __init__(self, make, batches, described, seed, rank, first_epoch):
        super().__init__(described[0].shape[0])
        self.batches, self.epoch = batches, first_epoch
        self.provide_data, self.provide_label = [described[0]], [described[1]]
        self._make, self._seed, self._rank = make, seed, rank
        self._inner, self._done = None, 0

    def reset(self):
        self.epoch += 1
        self._inner, self._done = None, 0

    def next(self):
        if self._done == self.batches:
            # Backward of batch norm changes the running statistics without naming them to the engine. Without this wait, a reader at the
            # end of an epoch, such as a checkpoint, may come too early.
            mx.nd.waitall()
            raise StopIteration
        if self._inner is None:
            seed = int(np.random.SeedSequence((self._seed, self.epoch, self._rank)).generate_state(1)[0]) >> 1
            mx.random.seed(seed)
            self._inner = self._make(seed)
        try:
            batch = self._inner.next()
        except StopIteration:
            self._inner.reset()
            batch = self._inner.next()
        self._done += 1
        return batch


class _Synthetic:
    """The same random batch forever."""

    def __init__(self, args, seed):
        random = np.random.RandomState(seed)
        data = random.uniform(-1, 1, (args.batch_size,) + args.image_shape)
        labels = random.randint(0, args.num_classes, args.batch_size)
        self._batch = mx.io.DataBatch([mx.nd.array(data)], [mx.nd.array(labels)], pad=0)

    def next(self):
        return self._batch


def training_iter(args, rank, workers):
    """This worker's training images, an :class:`EpochIter`."""
    described = (mx.io.DataDesc("data", (args.batch_size,) + args.image_shape), mx.io.DataDesc("softmax_label", (args.batch_size,)))
    if args.benchmark:
        examples = args.num_examples or SYNTHETIC_BATCHES * args.batch_size * workers

        def make(seed):
            return _Synthetic(args, seed)
    else:
        count = count_records(args.data_train_idx)
        if smallest_part(count, workers) < args.batch_size:
            raise OptionError(
                f"--batch-size {args.batch_size}: the {count} images of {args.data_train} give a worker as few as "
                f"{max(0, smallest_part(count, workers))}; take a smaller batch or fewer workers"
            )
        examples = args.num_examples or count

        def make(seed):
            return _record_iter(
                args, args.data_train, args.data_train_idx, rank, workers, shuffle=True, seed=seed, seed_aug=seed, **_augmentation(args)
            )

    batches = examples // (args.batch_size * workers)
    if batches == 0:
        raise OptionError(f"--num-examples {examples} is less than one batch of {args.batch_size} for each of {workers} workers")
    return EpochIter(make, batches, described, args.seed, rank, args.first_epoch)


class ValidationImages:
    """This worker's validation images, each once per pass; the last batch is padded, as its ``pad`` says.

    MXNet's reader does not say so itself: it either starts the next pass with other images, or calls a padded batch full.
    """

    def __init__(self, args, rank, workers):
        count = count_records(args.data_val_idx)
        if smallest_part(count, workers) < 1:
            raise OptionError(f"--data-val {args.data_val} has {count} images, too few for {workers} workers")
        self.count = smallest_part(count, workers) if rank == workers - 1 else -(-count // workers)
        self._images = _record_iter(args, args.data_val, args.data_val_idx, rank, workers, round_batch=False)

    def __iter__(self):
        self._images.reset()
        left = self.count
        while left > 0:
            batch = self._images.next()
            batch.pad = max(0, batch.data[0].shape[0] - left)
            left -= batch.data[0].shape[0] - batch.pad
            yield batch


def validation_images(args, rank, workers):
    """This worker's :class:`ValidationImages`; None without any."""
    return None if args.benchmark or args.data_val is None else ValidationImages(args, rank, workers)


def smallest_part(count, parts):
    """Records in the last of the parts that MXNet's reader makes: all but the last are of the same size, rounded up."""
    return count - (parts - 1) * -(-count // parts)


def count_records(index):
    """Records in a RecordIO file, from its index."""
    with open(index, "rb") as file:
        count = sum(1 for line in file if line.strip())
    if count == 0:
        raise OptionError(f"{index} is empty: write the RecordIO file again with make_rec.py")
    return count


def _record_iter(args, path, index, rank, workers, **options):
    channels = {
        f"{kind}_{channel}": value
        for kind, values in (("mean", args.rgb_mean), ("std", args.rgb_std))
        for channel, value in zip("rgb", values)
    }
    return mx.io.ImageRecordIter(
        path_imgrec=path,
        path_imgidx=index,
        data_shape=args.image_shape,
        batch_size=args.batch_size,
        num_parts=workers,
        part_index=rank,
        preprocess_threads=args.data_nthreads,
        resize=args.resize or -1,
        verbose=False,
        **channels,
        **options,
    )


def _augmentation(args):
    return dict(
        rand_crop=args.random_crop and not args.random_resized_crop,
        rand_mirror=args.random_mirror,
        random_resized_crop=args.random_resized_crop,
        min_random_area=args.min_random_area,
        max_aspect_ratio=args.max_random_aspect_ratio,
        min_random_scale=args.min_random_scale,
        max_random_scale=args.max_random_scale,
        max_rotate_angle=args.max_random_rotate_angle,
        max_shear_ratio=args.max_random_shear_ratio,
        random_h=args.max_random_h,
        random_s=args.max_random_s,
        random_l=args.max_random_l,
        pad=args.pad_size,
        fill_value=127,
    )
