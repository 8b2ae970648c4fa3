"""Training through frameworks, by their real packages: the recipes of docs/pytorch.md, and what users do without having read them.

Each is trained with DistributedDataParallel, by the recipe, and in the natural ways. Weights are compared bit for bit, and the bytes that a
rank sends are counted, so that nothing is reduced twice.
"""

import importlib.util
import json
from textwrap import dedent

import pytest

from support.paths import TESTS
from support.ranks import run_script

COMMON = """
    import hashlib, json, os, sys
    from pathlib import Path

    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    os.environ["PROPHET_WARMUP"] = "2"
    os.environ["PROPHET_UNIT"] = "20kB"
    sys.path.insert(0, sys.argv[1])
    import torch, torch.distributed as dist
    from torch import nn
    from torch.optim import lr_scheduler
    from support.sent import written
    from prophet_mx.errors import ConfigError
    from prophet_mx.torch import ScheduledOptimizer
    from prophet_mx.torch.integrations import ScheduledCallback, ScheduledStrategy, schedule

    WIDTH = 150
    results = {}

    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def sent_so_far(optimizer):
        getattr(optimizer, "synchronize", int)()
        return written()

    def keep(name, model, optimizer, sent):
        weights = b"".join(bytes(each.detach().contiguous().view(-1).view(torch.uint8).tolist()) for each in model.parameters())
        results[name] = [hashlib.sha256(weights).hexdigest(), sent, getattr(optimizer, "stats", dict)().get("plans", 0)]

    def refused(make):
        try:
            make()
        except ConfigError as error:
            return str(error)
"""

END = """
    if os.environ["RANK"] == "0":
        print("RESULT " + json.dumps(results))
    if dist.is_initialized():
        dist.destroy_process_group()
"""

# As torchrun sets it.
ENVIRONMENT = {"TORCHELASTIC_RUN_ID": "test", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "HF_HUB_OFFLINE": "1"}


def run(package, text, tests):
    """The results by name, each a list of the weights' hash, the bytes sent, and the plans made."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    script = dedent(COMMON.replace("import ScheduledCallback, ScheduledStrategy, schedule", f"import {tests}")) + dedent(text) + dedent(END)
    outputs = run_script(script, arguments=[TESTS], timeout=240, env=ENVIRONMENT)
    assert [code for code, _ in outputs] == [0, 0], "\n".join(output for _, output in outputs)
    [line] = [line for line in outputs[0][1].splitlines() if line.startswith("RESULT ")]
    return json.loads(line[len("RESULT ") :])


def check(results, *scheduled, ddp="ddp"):
    """Those that are scheduled end with DDP's weights, have sent about as many bytes, and went by a plan at the end."""
    weights, sent, _ = results[ddp]
    for name in scheduled:
        assert results[name][0] == weights, f"{name}: other weights"
        assert 0.9 * sent < results[name][1] < 1.15 * sent, f"{name}: {results[name][1]} bytes, DDP {sent}"
        assert results[name][2] > 0, f"{name}: no plan"


ACCELERATE = """
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)

    def train(name, wrap, clip=None, scaler=None):
        random = torch.Generator().manual_seed(accelerator.process_index)
        raw = net()
        model, optimizer = wrap(raw, torch.optim.SGD(raw.parameters(), lr=0.1, momentum=0.9))
        scheduler = accelerator.prepare(lr_scheduler.StepLR(optimizer, 4, 0.5))
        for iteration in range(24):
            if iteration == 12:
                before = sent_so_far(optimizer.optimizer)
            with accelerator.accumulate(model):
                loss = model(torch.randn(2, WIDTH, generator=random)).square().mean()
                scaler.scale(loss / 2).backward() if scaler else accelerator.backward(loss)
                if clip and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        keep(name, model, optimizer.optimizer, sent_so_far(optimizer.optimizer) - before)
        getattr(optimizer.optimizer, "close", int)()

    def recipe(model, optimizer):
        model, optimizer = accelerator.prepare(model, optimizer)
        return model, schedule(model, optimizer)

    train("ddp", lambda *both: accelerator.prepare(*both))
    train("recipe", recipe)
    train("before prepare", lambda model, optimizer: accelerator.prepare(model, ScheduledOptimizer(model, optimizer)))
    train("clipped ddp", lambda *both: accelerator.prepare(*both), 0.01)
    train("clipped recipe", recipe, 0.01)
    for name, end in ("scaled ddp", lambda model, optimizer: optimizer), ("scaled recipe", schedule):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=3)

        def scaled(model, optimizer):
            model = accelerator.prepare(model)
            return model, end(model, AcceleratedOptimizer(optimizer, device_placement=False, scaler=scaler))

        train(name, scaled, scaler=scaler)
    model, optimizer = accelerator.prepare(net(), torch.optim.SGD(net().parameters(), lr=0.1))
    results["after prepare"] = refused(lambda: ScheduledOptimizer(model, optimizer))
"""


def test_accelerate():
    results = run("accelerate", ACCELERATE, "schedule")
    check(results, "recipe", "before prepare")
    assert results["clipped recipe"][0] == results["clipped ddp"][0] != results["ddp"][0]
    check(results, "scaled recipe", ddp="scaled ddp")
    assert "optimizer is a framework's AcceleratedOptimizer" in results["after prepare"]
    assert "schedule(model, optimizer)" in results["after prepare"]


TRAINER = """
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Count(TrainerCallback):
        def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
            if state.global_step == 6:
                self.before = sent_so_far(optimizer.optimizer)

        def on_step_end(self, args, state, control, optimizer=None, **kwargs):
            if state.global_step == 12:
                self.optimizer = optimizer.optimizer
                self.sent = sent_so_far(self.optimizer) - self.before
                self.told = getattr(self.optimizer, "stats", dict)()

    random = torch.Generator().manual_seed(1)
    words = [torch.randint(50, (8,), generator=random) for _ in range(200)]
    data = [{"input_ids": each, "labels": each} for each in words]

    def train(name, wrap=lambda model: {}, **options):
        arguments = TrainingArguments(
            output_dir=sys.argv[1] + "/nothing", use_cpu=True, max_steps=12, per_device_train_batch_size=2, gradient_accumulation_steps=2,
            learning_rate=0.01, report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no", **options,
        )
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=48, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
        count = Count()
        given = wrap(model)
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[count, *given.pop("callbacks", [])], **given)
        trainer.train()
        keep(name, model, None, count.sent)
        results[name][2] = count.told.get("plans", 0)
        assert all(type(each) is nn.Parameter for each in model.parameters()) or "optimizers" in given
        getattr(count.optimizer, "close", int)()

    def own(model):
        return {"optimizers": (torch.optim.AdamW(model.parameters(), lr=0.01), None)}

    def natural(model):
        return {"optimizers": (ScheduledOptimizer(model, *own(model)["optimizers"][:1]), None)}

    train("ddp")
    train("recipe", lambda model: {"callbacks": [ScheduledCallback()]})
    train("own ddp", own)
    train("natural", natural)
    for name in ("unclipped ddp", "unclipped recipe"):
        train(name, lambda model: {"callbacks": [ScheduledCallback()] if "recipe" in name else []}, max_grad_norm=0)
"""


def test_trainer():
    results = run("transformers", TRAINER, "ScheduledCallback")
    check(results, "recipe")
    check(results, "natural", ddp="own ddp")
    assert results["unclipped recipe"][0] == results["unclipped ddp"][0] != results["ddp"][0]


LIGHTNING = """
    import warnings
    warnings.filterwarnings("ignore")
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import DDPStrategy

    class Count(pl.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            if index == 12:
                self.before = sent_so_far(trainer.optimizers[0])

        def on_train_end(self, trainer, module):
            self.optimizer = trainer.optimizers[0]
            self.sent = sent_so_far(self.optimizer) - self.before
            self.told = getattr(self.optimizer, "stats", dict)()

    class Module(pl.LightningModule):
        def __init__(self, wrap):
            super().__init__()
            self.net, self.wrap = net(), wrap

        def training_step(self, batch, index):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            optimizer = self.wrap(self, torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": lr_scheduler.StepLR(optimizer, 4, 0.5), "interval": "step"}}

    data = torch.randn(96, WIDTH, generator=torch.Generator().manual_seed(1))

    def train(name, strategy, wrap=lambda module, optimizer: optimizer, **options):
        count = Count()
        module = Module(wrap)
        trainer = pl.Trainer(
            accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, accumulate_grad_batches=2, logger=False, callbacks=[count],
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **options,
        )
        trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=2))
        keep(name, module, None, count.sent)
        results[name][2] = count.told.get("plans", 0)
        getattr(count.optimizer, "close", int)()
        assert all(type(each) is nn.Parameter for each in module.parameters())

    train("ddp", DDPStrategy())
    train("recipe", ScheduledStrategy())
    train("module", "ddp", lambda module, optimizer: ScheduledOptimizer(module, optimizer))
    train("net", "ddp", lambda module, optimizer: ScheduledOptimizer(module.net, optimizer))
    for name, strategy in (("clipped ddp", "ddp"), ("clipped recipe", ScheduledStrategy(settings={"warmup": 1}))):
        train(name, strategy, gradient_clip_val=0.01)
"""


def test_lightning():
    results = run("lightning", LIGHTNING, "ScheduledStrategy")
    check(results, "recipe", "module", "net")
    assert results["clipped recipe"][0] == results["clipped ddp"][0] != results["ddp"][0]


def test_a_framework_is_imported_only_for_its_own_name():
    text = """
        import sys
        import prophet_mx.torch.integrations as integrations
        integrations.schedule
        assert not {"transformers", "accelerate", "lightning"} & sys.modules.keys()
        try:
            integrations.Nothing
        except AttributeError as error:
            print(error)
    """
    [(code, output)] = run_script(text, 1)
    assert code == 0 and "no attribute 'Nothing'" in output, output
