"""The ImageNet examples: the commands of their README run as they stand there, and the parts they are made of."""

import io
import os
import pickle
import re
import resource
import shlex
import shutil
import signal
import sys
from collections import Counter
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from support import commands
from support.paths import ROOT

for module in ("mxnet", "PIL"):
    pytest.importorskip(module)

import mxnet as mx  # noqa: E402
from PIL import Image  # noqa: E402

FOLDER = ROOT / "examples" / "mxnet-image-classification"
LIMIT = 120  # seconds for one command; alone on the machine it takes a tenth of that

sys.path.insert(0, str(FOLDER))
import make_rec as make_rec_script  # noqa: E402
from common import checkpoint, data, networks, options, training  # noqa: E402

# -- the commands of the README ------------------------------------------------------------------------------------------------


def readme_commands():
    """The commands of the section that a reader tries on one machine, in their order."""
    section = (FOLDER / "README.md").read_text(encoding="utf-8").split("## Try it on one machine", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [line for block in blocks for line in re.sub(r" \\\n *", " ", block).splitlines()]


def run(command, folder, expect=0):
    """Run a command line as a shell would with this Python on its PATH; what it printed."""
    words = shlex.split(command)
    if words[0] == "prophet-mx":  # a checkout has no such script
        words[:1] = [sys.executable, "-m", "prophet_mx"]
        words[words.index("--") : words.index("--")] = ["--timeout", str(LIMIT)]
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    return commands.run(*words, cwd=folder, env={"PATH": path}, timeout=2 * LIMIT, merged=True, expect=expect).stdout


@pytest.fixture(scope="module")
def readme(tmp_path_factory):
    """All commands of the README's section, run in a copy of the folder: (folder, {command: output})."""
    folder = tmp_path_factory.mktemp("examples") / "folder with a space"
    shutil.copytree(str(FOLDER), str(folder), ignore=shutil.ignore_patterns("__pycache__", ".demo"))
    return folder, {command: run(command, folder) for command in readme_commands()}


def outputs(readme, *words):
    found = [output for command, output in readme[1].items() if all(word in command.split() for word in words)]
    assert found
    return found


def test_readme_shows_each_script_with_and_without_scheduling():
    commands = " ".join(readme_commands())
    for script in ("make_images.py", "make_rec.py", "train_imagenet.py", "train_gluon.py", "benchmark.py"):
        assert script in commands
    assert "--policy off" in commands and "--load-epoch" in commands and commands.count("cmp ") == 3


def test_commands_train_and_resume_to_the_same_weights(readme):
    """That the weights are the same is the README's own 'cmp'; here, that they are what it says they are."""
    folder = readme[0]
    first, second = (mx.nd.load(str(folder / f"models/r18-000{epoch}.params")) for epoch in (1, 2))
    changed = [name for name in first if (first[name].asnumpy() != second[name].asnumpy()).any()]
    assert len(changed) > 50 and all(np.isfinite(array.asnumpy()).all() for array in second.values())
    own, other = (mx.nd.load(str(folder / f"models/r18{rank}-0002.params")) for rank in ("", "-1"))
    assert all(own[name].asnumpy().tobytes() == other[name].asnumpy().tobytes() for name in own if name.startswith("arg:"))
    assert any(own[name].asnumpy().tobytes() != other[name].asnumpy().tobytes() for name in own if name.startswith("aux:"))
    for output in outputs(readme, "--load-epoch", "1"):
        assert output.count("and optimizer states") == 2 and "Epoch[0]" not in output and "Epoch[1]" in output


def test_commands_report_speed_and_accuracy(readme):
    for script in ("train_imagenet.py", "train_gluon.py"):
        for output in outputs(readme, "launch", script):
            assert re.search(r"Epoch\[1\] Batch \[\S+\]\s+Speed: [\d.]+ samples/sec\s+accuracy=[\d.]+\s+top_k_accuracy_5=[\d.]+", output)
            for part in ("Train", "Validation"):
                for name in ("accuracy", "top_k_accuracy_5"):
                    assert len(re.findall(rf"Node\[[01]\] Epoch\[1\] {part}-{name}=[01]\.\d+", output)) == 2, output


def test_scheduling_is_on_unless_it_is_turned_off(readme):
    (plain,) = outputs(readme, "--policy", "off")
    assert plain.count("is not scheduled: the policy is off") == 2 and "units over" not in plain
    for output in outputs(readme, "launch", "--load-epoch"):
        assert len(re.findall(r"policy prophet scheduled [\d.]+ MB in [1-9]\d* units over 2 iterations", output)) == 2, output


def test_learning_rate_of_a_resumed_run_is_that_of_its_epoch(readme):
    """The rate changes after the first update of epoch 1, the third of all; a run that counted anew would never come there."""
    for output in outputs(readme, "train_imagenet.py", "--lr-step-epochs"):
        assert output.count("Update[3]: Change learning rate to 2.00000e-03") == 2, output


def test_benchmark_compares_speeds(readme):
    (output,) = outputs(readme, "benchmark.py")
    rows = dict(re.findall(r"^(off|prophet) +(.*)$", output, re.MULTILINE))
    off, prophet = (float(rows[name].split()[0]) for name in ("off", "prophet"))
    assert off > 0 and rows["off"].endswith(" 1.00x")
    assert float(rows["prophet"].split()[-1][:-1]) == pytest.approx(prophet / off, abs=0.02)


def test_recordio_set_of_the_readme(readme):
    folder = readme[0]
    listed = [line.split("\t") for part in ("train", "val") for line in (folder / f"data/demo-{part}.lst").read_text().splitlines()]
    assert Counter(label for _, label, _ in listed) == {str(i): 16 for i in range(6)}
    assert len({path for _, _, path in listed}) == 96
    assert (folder / "data/demo.classes").read_text().split() == [f"class0{i}" for i in range(6)]
    assert "demo-train: 36 of 72 images" in outputs(readme, "make_rec.py")[0]  # no terminal, so no bar


# -- options -------------------------------------------------------------------------------------------------------------------


def parsed(*words):
    return options.parse(options.make_parser("For a test.\n\n    example"), words)


@pytest.mark.parametrize(
    "words, message",
    [
        (("--benchmark", "1", "--batch-size", "0"), "--batch-size: '0' is not allowed; allowed: a whole number of at least 1"),
        (("--benchmark", "1", "--image-shape", "224"), "--image-shape: '224' is not allowed"),
        (("--benchmark", "1", "--image-shape", "4,8,8"), "1 or 3 channels"),
        (("--benchmark", "1", "--lr", "nan"), "--lr: 'nan' is not allowed"),
        (("--benchmark", "1", "--lr-step-epochs", "60,30"), "--lr-step-epochs: '60,30' is not allowed; allowed: rising epochs"),
        (("--benchmark", "1", "--gpus", "0,0"), "--gpus: '0,0' is not allowed; allowed: every GPU once"),
        (("--benchmark", "1", "--gpus", "99"), "GPU 99 is not there"),
        (("--benchmark", "1", "--cpus", "3", "--batch-size", "4"), "--batch-size 4 cannot be divided over 3 devices"),
        (("--benchmark", "1", "--kv-store", "dist_sync"), "prophet-mx launch -n 2 -s 1 --"),
        (("--benchmark", "1", "--dtype", "float16"), "--dtype float16 needs --gpus"),
        (("--benchmark", "1", "--gc-type", "2bit"), "--gc-type 2bit needs --kv-store dist_sync"),
        (("--benchmark", "1", "--num-classes", "4"), "--top-k 5 is not allowed; allowed: 0, or 2 to 3"),
        (("--benchmark", "1", "--random-resized-crop", "1", "--min-random-scale", "0.5"), "-resized-crop 1 scales the image"),
        (("--benchmark", "1", "--min-random-scale", "2"), "--min-random-scale 2.0 is larger than --max-random-scale 1"),
        (("--benchmark", "1", "--load-epoch", "2"), "--load-epoch needs --model-prefix"),
        (("--benchmark", "1", "--load-epoch", "auto"), "--load-epoch needs --model-prefix"),
        (
            ("--benchmark", "1", "--load-epoch", "last", "--model-prefix", "x"),
            "'last' is not allowed; allowed: a whole number of at least 1, or auto",
        ),
        (("--benchmark", "1", "--load-epoch", "3", "--model-prefix", "x", "--num-epochs", "3"), "nothing is left to train"),
        (("--data-train", "no/such.rec"), "there is no file no/such.rec"),
        ((), "--benchmark 1"),
    ],
)
def test_wrong_options_are_one_line(words, message, capsys, monkeypatch):
    with pytest.raises(SystemExit) as ended:
        parsed(*words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_optimizer_runs_where_its_state_can_be_saved():
    assert not parsed("--benchmark", "1").on_workers
    assert parsed("--benchmark", "1", "--model-prefix", "x").on_workers
    assert not parsed("--benchmark", "1", "--model-prefix", "x", "--update-on", "servers").on_workers


def test_learning_rate_schedule():
    args = parsed("--benchmark", "1", "--lr", "0.8", "--lr-step-epochs", "2,3", "--warmup-epochs", "1", "--lr-factor", "0.5")
    schedule = training.lr_scheduler(args, 10)
    assert [schedule(update) for update in (5, 10, 20, 21, 30, 31, 99)] == pytest.approx([0.4, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2])
    assert training.lr_scheduler(args, 10)(25) == pytest.approx(0.4)  # first asked in the middle, as after a resume
    assert training.lr_scheduler(parsed("--benchmark", "1", "--lr-step-epochs", ""), 10)(10**9) == 0.1


# -- networks ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", networks.FAMILIES)
def test_every_network_has_its_shapes_and_a_symbol(family):
    side = 299 if family == "inception-v3" else 224
    args = parsed("--benchmark", "1", "--network", family, "--num-classes", "7", "--image-shape", f"3,{side},{side}")
    assert all(0 not in parameter.shape for parameter in networks.make(args).collect_params().values())
    symbol = networks.symbol(args)
    assert symbol.infer_shape(data=(2, 3, side, side))[1] == [(2, 7)]
    assert symbol.list_arguments() == networks.symbol(args).list_arguments()  # the names that a checkpoint has


@pytest.mark.parametrize(
    "words, message",
    [
        (("--network", "resnet", "--num-layers", "19"), "--network resnet --num-layers 19 is not allowed"),
        (("--network", "perceptron"), "--network perceptron is not allowed; allowed: resnet"),
        (("--network", "inception-v3", "--image-shape", "3,32,32"), "does not take images of --image-shape 3,32,32"),
    ],
)
def test_wrong_networks_say_what_is_allowed(words, message):
    with pytest.raises(options.OptionError, match=re.escape(message)):
        networks.make(parsed("--benchmark", "1", *words))


# -- data ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """A RecordIO set of 23 images whose labels are their numbers; the options to train on it and to validate with it."""
    path = str(tmp_path_factory.mktemp("numbered") / "set")
    record = mx.recordio.MXIndexedRecordIO(path + ".idx", path + ".rec", "w")
    random = np.random.RandomState(0)
    for number in range(23):
        file = io.BytesIO()
        Image.fromarray(random.randint(0, 255, (12, 10, 3), dtype="uint8")).save(file, "PNG")
        record.write_idx(number, mx.recordio.pack(mx.recordio.IRHeader(0, float(number), number, 0), file.getvalue()))
    record.close()
    return ("--data-train", path + ".rec", "--data-val", path + ".rec", "--image-shape", "3,8,8", "--data-nthreads", "2")


def labels_of(batches):
    """Of the images alone: where a batch has more places than a worker has images, MXNet leaves the rest as it found the memory."""
    return [[int(label) for label in batch.label[0].asnumpy()[: batch.label[0].size - batch.pad]] for batch in batches]


@pytest.mark.parametrize("workers, batch", [(1, 23), (1, 5), (2, 4), (2, 30), (3, 3), (5, 1)])
def test_each_validation_image_counts_once_in_every_pass(numbered, workers, batch):
    images = [data.validation_images(parsed(*numbered, "--batch-size", str(batch)), rank, workers) for rank in range(workers)]
    for _ in range(2):
        seen = []
        for own in images:
            seen += chain(*labels_of(own))
        assert sorted(seen) == list(range(23))


def test_an_epoch_is_the_same_after_others_and_after_a_resume(numbered):
    def epochs(count, *words, rank=0):
        images = data.training_iter(parsed(*numbered, "--batch-size", "5", *words), rank, 2)
        result = []
        for _ in range(count):
            batches = list(images)
            result.append(
                (labels_of(batches), np.stack([batch.data[0].asnumpy() for batch in batches]), mx.nd.random.uniform(shape=4).asnumpy())
            )
            images.reset()
        return result

    first, second = epochs(2)
    (resumed,) = epochs(1, "--load-epoch", "1", "--model-prefix", "x")
    (other,) = epochs(1, "--seed", "1")
    assert len(first[0]) == 2  # 23 images, 2 workers, 5 at a time
    for one, two in zip(second, resumed):
        assert np.array_equal(one, two)
    for different in (second, other):
        assert not any(np.array_equal(one, two) for one, two in zip(first, different))
    assert not set(chain(*first[0])) & set(chain(*epochs(1, rank=1)[0][0]))


@pytest.mark.parametrize(
    "words, workers, message",
    [
        (("--batch-size", "12"), 2, "--batch-size 12: the 23 images of"),
        (("--batch-size", "4", "--num-examples", "7"), 2, "--num-examples 7 is less than one batch of 4 for each of 2 workers"),
    ],
)
def test_too_few_images(numbered, words, workers, message):
    with pytest.raises(options.OptionError, match=re.escape(message)):
        data.training_iter(parsed(*numbered, *words), 0, workers)


# -- checkpoints ---------------------------------------------------------------------------------------------------------------


WEIGHTS = {"arg:w": mx.nd.ones((30, 2)), "aux:mean": mx.nd.ones((3,), dtype="float16"), "arg:count": mx.nd.array([1], dtype="int64")}


def test_an_interrupted_checkpoint_leaves_no_files(tmp_path):
    prefix = str(tmp_path / "new" / "model")
    checkpoints = checkpoint.Checkpoints(prefix, rank=0, workers=2)
    with pytest.raises(KeyboardInterrupt), checkpoints.writing(1) as own:
        Path(own + "-0001.params").write_text("half")
        raise KeyboardInterrupt
    assert list((tmp_path / "new").iterdir()) == []
    with checkpoints.writing(1) as own:
        mx.nd.save(own + "-0001.params", WEIGHTS)
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"model-0001.params", "model-0001.workers"}


def test_a_checkpoint_that_is_not_there_names_those_that_are(tmp_path):
    prefix = str(tmp_path / "model")
    for name in ("model-0002.params", "model-0010.params", "model-1-0003.params", "other-0004.params"):
        mx.nd.save(str(tmp_path / name), WEIGHTS)
    with pytest.raises(options.OptionError, match="model-0003.params; there are those of epoch 2, 10$"):
        checkpoint.Checkpoints(prefix, 0, 2).find(3)
    assert checkpoint.Checkpoints(prefix, 1, 2).find(3) == prefix + "-1"
    assert checkpoint.Checkpoints(prefix, 1, 2).find(2) == prefix  # rank 0's


def save(prefix, epoch, workers, saved=None):
    """An epoch of a job of so many workers, of which only those of the ranks ``saved`` have got that far."""
    for rank in range(workers) if saved is None else saved:
        with checkpoint.Checkpoints(prefix, rank, workers).writing(epoch) as own:
            mx.nd.save(f"{own}-{epoch:04d}.params", {**WEIGHTS, "arg:workers": mx.nd.array([workers])})


def test_old_checkpoints_go_once_enough_later_ones_are_complete(tmp_path):
    """At every moment, so that a job that is killed then can go on."""
    prefix, others = str(tmp_path / "model"), ["other-0001.params", "model-symbol.json", "model-12.params"]
    for name in others:
        (tmp_path / name).write_text("{}")

    def write(rank, epoch):
        with checkpoint.Checkpoints(prefix, rank, 2, keep=2).writing(epoch) as own:
            mx.nd.save(f"{own}-{epoch:04d}.params", WEIGHTS)
            Path(f"{own}-{epoch:04d}.states").write_bytes(pickle.dumps({}))

    for epoch in range(1, 7):
        for rank in (1, 0) if epoch % 2 else (0, 1):
            write(rank, epoch)
            assert epoch < 4 or checkpoint.Checkpoints(prefix, rank, 2).newest() in (epoch - 1, epoch)
    assert {path.name for path in tmp_path.iterdir()} == {
        *others,
        *(f"model{rank}-000{epoch}.{kind}" for rank in ("", "-1") for epoch in (5, 6) for kind in ("params", "states")),
        *("model-0004.params", "model-0004.states", "model-0004.workers"),  # rank 0 wrote epoch 6 before rank 1 did
        *("model-0005.workers", "model-0006.workers"),
    }


class Told:
    """A store as the workers of a job see it one after the other, rank 0 first: an initial value is rank 0's."""

    type = "dist_sync"

    def init(self, key, value):
        if self.rank == 0:
            self.value = value

    def pull(self, key, out):
        out[:] = self.value


def resumed(prefix, workers):
    """The epoch after which each of so many workers goes on with --load-epoch auto; its files are those before."""
    before = {path: path.read_bytes() for path in Path(prefix).parent.iterdir()}
    found, told = set(), Told()
    for rank in range(workers):
        args = parsed("--benchmark", "1", "--num-epochs", "12", "--model-prefix", prefix, "--load-epoch", "auto")
        told.rank, told.num_workers = rank, workers
        try:
            checkpoint.resume(args, checkpoint.Checkpoints(prefix, rank, workers), told, "epoch")
            found.add((args.load_epoch, args.first_epoch))
        except options.OptionError as error:
            found.add(str(error).replace("--load-epoch auto: rank 0 cannot resume, and says why", str(min(map(str, found), default=""))))
    assert {path: path.read_bytes() for path in Path(prefix).parent.iterdir()} == before
    [same] = found
    return same


def test_auto_goes_on_after_the_last_epoch_that_all_workers_have_saved(tmp_path):
    prefix = str(tmp_path / "model")
    assert resumed(prefix, 2) == (None, 0)
    save(prefix, 1, 2, [0])  # killed in its first checkpoint: there is nothing to go on from, and nothing to lose
    assert resumed(prefix, 2) == resumed(prefix, 3) == (None, 0)
    save(prefix, 2, 3)
    save(prefix, 3, 2)
    save(prefix, 4, 2, [0])
    save(prefix, 5, 2, [1])
    (tmp_path / "other-0012.params").write_text("")
    assert resumed(prefix, 2) == resumed(prefix, 1) == (3, 3)


def test_auto_overwrites_no_epoch_of_a_job_with_fewer_workers(tmp_path):
    prefix = str(tmp_path / "model")
    save(prefix, 2, 3)
    save(prefix, 3, 2)
    save(prefix, 4, 2, [0])
    for workers in (3, 4):
        refused = resumed(prefix, workers)
        assert f"model-0003.params was saved by 2 worker(s), and this job has {workers}" in refused
        assert "start 2 worker(s)" in refused and "--load-epoch 3" in refused and "--model-prefix" in refused
    for path in tmp_path.glob("*.workers"):  # of MXNet's own example: who saved can be counted
        path.unlink()
    (tmp_path / "model-0004.params").unlink()
    assert "model-0003.params was saved by 2 worker(s)" in resumed(prefix, 3) and resumed(prefix, 2) == (3, 3)


def test_auto_does_not_mix_files_of_two_jobs(tmp_path):
    prefix = str(tmp_path / "model")
    save(prefix, 1, 3)
    save(prefix, 1, 2)  # over it, without --load-epoch: rank 2's file is of another training
    assert "saved by 2 worker(s), and this job has 3" in resumed(prefix, 3) and resumed(prefix, 2) == (1, 1)


@contextmanager
def small_disk(size):
    """No file can become larger than this, as on a disk that is full."""
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("elements", [100, 10**6])  # MXNet says nothing of the first, as its last buffer is lost, and fails at the second
@pytest.mark.parametrize("earlier", [False, True])
def test_a_full_disk_is_an_error_and_leaves_the_checkpoints_that_were_there(tmp_path, elements, earlier):
    prefix = str(tmp_path / "model")
    for epoch in (1, 2) if earlier else (1,):
        save(prefix, epoch, 2)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for rank in (0, 1):
        refused = pytest.raises(options.OptionError, match=r"model(-1)?-0002.params cannot be written .*full")
        with refused, small_disk(300), checkpoint.Checkpoints(prefix, rank, 2, keep=1).writing(2) as own:
            mx.nd.save(f"{own}-0002.params", {"arg:w": mx.nd.ones((elements,))})
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_symbol_that_did_not_fit_on_the_disk_replaces_no_other(tmp_path):
    prefix = str(tmp_path / "model")
    (tmp_path / "model-symbol.json").write_text("{}")
    refused = pytest.raises(options.OptionError, match="model-0001.params cannot be written .model-symbol.json is incomplete")
    with refused, checkpoint.Checkpoints(prefix, 0, 1).writing(1) as own:
        mx.nd.save(f"{own}-0001.params", WEIGHTS)
        Path(f"{own}-symbol.json").write_text("")
    assert [path.name for path in tmp_path.iterdir()] == ["model-symbol.json"]


@pytest.mark.parametrize("kind, left", [("params", 0), ("params", 30), ("params", -1), ("states", 0), ("states", -1)])
def test_auto_goes_back_to_the_newest_epoch_that_all_workers_can_read(tmp_path, kind, left, caplog):
    prefix = str(tmp_path / "model")
    for epoch in (1, 2, 3):
        save(prefix, epoch, 2)
        for rank in ("", "-1"):
            Path(f"{prefix}{rank}-{epoch:04d}.states").write_bytes(pickle.dumps({"momentum": 0.5}))
    broken = tmp_path / f"model-1-0003.{kind}"
    broken.write_bytes(broken.read_bytes()[:left])
    assert resumed(prefix, 2) == (2, 2)
    assert f"model-1-0003.{kind} is incomplete" in caplog.text and "epoch 2" in caplog.text
    for rank, wrong in ((1, f"model-1-0003.{kind} is incomplete"), (0, None)):
        with pytest.raises(options.OptionError, match=wrong) if wrong else nullcontext():
            checkpoint.Checkpoints(prefix, rank, 2).find(3)
    saved = {epoch: Path(f"{prefix}-{epoch:04d}.params").read_bytes() for epoch in (1, 2)}
    for rank in (0, 1):  # only what can be read counts
        checkpoints = checkpoint.Checkpoints(prefix, rank, 2, keep=2)
        with checkpoints.writing(4) as own:
            mx.nd.save(f"{own}-0004.params", WEIGHTS)
    assert {epoch: Path(f"{prefix}-{epoch:04d}.params").read_bytes() for epoch in (2,)} == {2: saved[2]}


def test_epochs_of_which_none_can_be_read_are_not_overwritten(tmp_path):
    prefix = str(tmp_path / "model")
    save(prefix, 1, 2)
    save(prefix, 2, 2)
    for epoch in (1, 2):  # as on hosts that do not share the folder
        Path(f"{prefix}-1-000{epoch}.params").unlink()
    refused = resumed(prefix, 2)
    assert "model-1-0002.params does not exist" in refused and "folder that all machines see" in refused and "--model-prefix" in refused


@pytest.mark.parametrize("text", ["", "abc", "0", "-1", "9" * 5000, "2 workers"])
def test_a_number_of_workers_that_is_none_is_an_error(tmp_path, text):
    prefix = str(tmp_path / "model")
    save(prefix, 1, 2)
    (tmp_path / "model-0001.workers").write_text(text)
    message = resumed(prefix, 2)
    assert "model-0001.workers" in message and "a whole number" in message and len(message) < 400, message


def test_workers_that_see_other_files_than_rank_0_say_so(tmp_path):
    """On hosts without a folder in common, or where one has an old copy, they would train from different weights."""
    prefixes = [str(tmp_path / host / "model") for host in "ab"]
    for prefix, epochs in zip(prefixes, ((1, 2), (1,))):
        for epoch in epochs:
            save(prefix, epoch, 2)
    told = Told()
    args = [parsed("--benchmark", "1", "--model-prefix", prefix, "--load-epoch", "auto") for prefix in prefixes]
    told.rank, told.num_workers = 0, 2
    checkpoint.resume(args[0], checkpoint.Checkpoints(prefixes[0], 0, 2), told, "epoch")
    assert args[0].load_epoch == 2
    told.rank = 1
    with pytest.raises(options.OptionError, match="rank 0 goes on after epoch 2, .*model-1-0002.params does not exist.* all machines see"):
        checkpoint.resume(args[1], checkpoint.Checkpoints(prefixes[1], 1, 2), told, "epoch")


# -- make_rec.py ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path):
    """Two classes: a PNG of 30 x 20, a JPEG of 60 x 40, and in the second a PNG with transparency and a text file."""
    for name, mode, size in (("cats/b.png", "RGB", (30, 20)), ("cats/a.jpg", "RGB", (60, 40)), ("dogs/deep/c.PNG", "RGBA", (10, 10))):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise(size, 50).convert(mode).save(str(path))
    (tmp_path / "photos" / "dogs" / "readme.txt").write_text("no image")
    return tmp_path


def make_rec(folder, *words, expect=0):
    return run(" ".join(map(shlex.quote, (sys.executable, str(FOLDER / "make_rec.py"), *map(str, words)))), folder, expect)


def records(prefix):
    record = mx.recordio.MXIndexedRecordIO(prefix + ".idx", prefix + ".rec", "r")
    return [mx.recordio.unpack(record.read_idx(key)) for key in record.keys]


def test_images_become_records_as_they_are(photos):
    make_rec(photos, "photos", "out/set")
    lines = [line.split("\t") for line in (photos / "out/set.lst").read_text().splitlines()]
    assert sorted((path, label) for _, label, path in lines) == [("cats/a.jpg", "0"), ("cats/b.png", "0"), ("dogs/deep/c.PNG", "1")]
    for (header, content), (number, label, path) in zip(records(str(photos / "out/set")), lines):
        assert (header.id, header.label) == (int(number), float(label))
        assert content == (photos / "photos" / path).read_bytes()
    assert sorted(path.name for path in (photos / "out").iterdir()) == ["set.classes", "set.idx", "set.lst", "set.rec"]


def test_resize_makes_large_images_smaller_and_numbers_classes_as_told(photos):
    (photos / "names").write_text("birds\ndogs\ncats\n")
    make_rec(photos, "photos", "set", "--resize", "20", "--classes", "names")
    assert sorted((Image.open(io.BytesIO(content)).size, header.label) for header, content in records(str(photos / "set"))) == [
        ((10, 10), 1.0),
        ((30, 20), 2.0),
        ((30, 20), 2.0),
    ]


def test_records_that_did_not_fit_on_the_disk_are_an_error(photos):
    with pytest.raises(make_rec_script.ImagesError, match="set.rec cannot be written .*full"), small_disk(300):
        make_rec_script.make(make_rec_script.parse_args([str(photos / "photos"), str(photos / "out" / "set")]))
    assert list((photos / "out").iterdir()) == []


def test_a_broken_image_stops_it_or_is_left_out(photos):
    content = (photos / "photos/cats/a.jpg").read_bytes()
    (photos / "photos/cats/a.jpg").write_bytes(content[: len(content) // 2])
    output = make_rec(photos, "photos", "out/set", expect=1)
    assert output.splitlines()[-1].startswith("make_rec.py: error: photos/cats/a.jpg cannot be read")
    assert list((photos / "out").iterdir()) == []
    assert "left out: photos/cats/a.jpg" in make_rec(photos, "photos", "out/set", "--skip-broken")
    assert len(records(str(photos / "out/set"))) == 2
