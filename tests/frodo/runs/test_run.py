"""The results folder: what is refused, what is written, and that a resumed run equals one that never stopped."""

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from frodo.files import DiskError
from frodo.runs.errors import UsageError
from frodo.runs.folders import RunOptions
from frodo.runs.run import Run
from frodo.runs.signals import Signals
from tests.frodo.runs.random_sum import Config, Inner, Sums, init, run

ROOT = Path(__file__).parents[3]
PROGRAM = [sys.executable, "-m", "tests.frodo.runs.random_sum"]


def start(*args, program):
    return subprocess.run([*program, *args], cwd=ROOT, capture_output=True, text=True, check=False)


def options(folder, steps=50, **others):
    return RunOptions(seeds=(0, 1), steps=steps, out=str(folder), **others)


def rows(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        clocks = ("seconds", "cpu_seconds", "peak_memory_mb")
        return [{key: row[key] for key in row if key not in clocks} for row in csv.DictReader(file)]


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def equal(a, b):
    a, b = (state._replace(key=jax.random.key_data(state.key)) for state in (a, b))
    return jax.tree.structure(a) == jax.tree.structure(b) and jax.tree.all(jax.tree.map(np.array_equal, a, b))


class TestFolder:
    def test_holds_what_the_run_was_and_gave(self, tmp_path):
        with jax.default_matmul_precision("float32"):
            state = run(Config(), options(tmp_path / "new" / "run"))
        record = json.loads((tmp_path / "new" / "run" / "config.json").read_bytes())
        assert record["config"] == {
            "learning_rate": 0.1,
            "kind": "normal",
            "is_slow": False,
            "inner": {"hidden": [3, 4], "gain": None},
        }
        assert (record["seeds"], record["steps"], record["experiment"]) == ([0, 1], 50, "random_sum")
        assert record["versions"]["jax"] == jax.__version__
        assert "git_revision" in record
        assert "cpu" in record["device"] and record["matmul_precision"] == "float32"
        lines = (tmp_path / "new" / "run" / "metrics.csv").read_text().splitlines()
        assert lines[0] == "seed,update,env_steps,env_frames,seconds,cpu_seconds,peak_memory_mb,return"
        assert len(lines) == 1 + 2 * 5
        last = lines[-1].split(",")
        assert last[:4] == ["1", "5", "50", "200"]
        assert np.float32(last[-1]) == state.total["w"][1]
        summary = json.loads((tmp_path / "new" / "run" / "summary.json").read_bytes())
        np.testing.assert_array_equal(np.float32(summary["total"]), state.total["w"])
        assert sorted(path.name for path in (tmp_path / "new" / "run").iterdir()) == [
            "checkpoints",
            "config.json",
            "metrics.csv",
            "summary.json",
        ]

    def test_another_process_may_not_write_it_at_the_same_time(self, tmp_path):
        with Run(options(tmp_path), experiment="a", name="b", config=Config()):
            for how in ("resume", "overwrite"):
                with pytest.raises(UsageError, match="is being written by another process"):
                    Run(options(tmp_path, **{how: True}), experiment="a", name="b", config=Config())
            assert (tmp_path / "config.json").exists()
        with Run(options(tmp_path, overwrite=True), experiment="a", name="b", config=Config()):
            pass

    def test_floats_are_written_with_the_digits_they_have(self, tmp_path):
        with Run(options(tmp_path), experiment="a", name="b", config=Config()) as one:
            one.finish(
                {"single": np.float32(0.1), "from single": float(np.float32(0.1)), "double": 1 / 3, "big": 1e300}
            )
        summary = json.loads((tmp_path / "summary.json").read_bytes())
        assert summary == {"single": 0.1, "from single": 0.1, "double": 1 / 3, "big": 1e300}

    def test_is_never_overwritten_unasked(self, tmp_path):
        run(Config(), options(tmp_path))
        before = files(tmp_path)
        with pytest.raises(UsageError, match=f"{tmp_path} holds a run: --resume .* --overwrite"):
            run(Config(), options(tmp_path))
        assert files(tmp_path) == before
        run(Config(), options(tmp_path, steps=20, overwrite=True))
        assert len(rows(tmp_path)) == 4
        assert json.loads((tmp_path / "config.json").read_bytes())["steps"] == 20

    def test_overwrite_leaves_files_that_are_not_of_a_run(self, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        run(Config(), options(tmp_path))
        (tmp_path / "rule.npz").write_text("what the old run discovered")
        (tmp_path / "rules").mkdir()
        run(Config(), options(tmp_path, overwrite=True))
        assert (tmp_path / "notes.txt").read_text() == "mine"
        assert not (tmp_path / "rule.npz").exists() and not (tmp_path / "rules").exists()

    def test_a_file_is_no_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match="is a file"):
            run(Config(), options(tmp_path / "file"))

    def test_rows_have_the_columns_of_the_first_one(self, tmp_path):
        row = {"seed": 0, "update": 1, "env_steps": 1, "env_frames": 1}
        with Run(options(tmp_path), experiment="a", name="b", config=Config()) as one:
            one.log([row | {"loss": 0.5}])
            with pytest.raises(ValueError, match="loss, lss"):
                one.log([row | {"lss": 0.5}])
            one.log([row | {"loss": 0.25}])
        assert [line["loss"] for line in rows(tmp_path)] == ["0.5", "0.25"]


class TestResume:
    def test_equals_never_stopped(self, tmp_path):
        whole = run(Config(), options(tmp_path / "whole", steps=80))
        run(Config(), options(tmp_path / "parts", steps=30))
        resumed = run(Config(), options(tmp_path / "parts", steps=80, resume=True))
        assert equal(resumed, whole)
        assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
        assert (tmp_path / "parts" / "summary.json").read_bytes() == (tmp_path / "whole" / "summary.json").read_bytes()
        record = json.loads((tmp_path / "parts" / "config.json").read_bytes())
        assert (record["steps"], record["resumed"][0]["step"]) == (80, 30)
        with (tmp_path / "parts" / "metrics.csv").open(newline="") as file:
            seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
        assert seconds == sorted(seconds)

    def test_goes_on_with_the_defaults_of_settings_that_are_new(self, tmp_path):
        run(Config(), options(tmp_path / "whole", 50))
        run(Config(), options(tmp_path / "parts", 30))
        path = tmp_path / "parts" / "config.json"
        record = json.loads(path.read_bytes())
        del record["config"]["is_slow"], record["config"]["inner"]["gain"]
        path.write_text(json.dumps(record))
        with pytest.raises(UsageError, match="config.is_slow was False in .* and is True now"):
            run(Config(is_slow=True), options(tmp_path / "parts", 50, resume=True))
        run(Config(), options(tmp_path / "parts", 50, resume=True))
        assert rows(tmp_path / "parts") == rows(tmp_path / "whole")

    def test_keeps_the_columns_that_it_has(self, tmp_path):
        row = {"seed": 0, "update": 1, "env_steps": 10, "env_frames": 10, "return": 0.5}
        with Run(options(tmp_path), experiment="a", name="b", config=Config()) as one:
            one.restore(init())
            one.log([row])
            one.save(init(), 10)
        with Run(options(tmp_path, resume=True), experiment="a", name="b", config=Config()) as one:
            one.restore(init())
            one.log([row | {"new": 3.0}])
            with pytest.raises(ValueError, match="return must be in every row"):
                one.log([{name: x for name, x in row.items() if name != "return"}])
        assert [dict(row) for row in rows(tmp_path)] == [{key: str(x) for key, x in row.items()}] * 2

    def test_clocks_go_on(self, tmp_path):
        with Run(options(tmp_path), experiment="a", name="b", config=Config()) as one:
            one.clock.go_on(1000, 500)
            one.save(init(), 10)
        with Run(options(tmp_path, resume=True), experiment="a", name="b", config=Config()) as one:
            one.restore(init())
            assert 1000 <= one.clock.seconds() < 1300 and 500 <= one.clock.cpu_seconds() < 800

    def test_drops_rows_after_the_checkpoint(self, tmp_path):
        run(Config(), options(tmp_path / "whole", steps=60))
        run(Config(), options(tmp_path / "parts", steps=30))
        with (tmp_path / "parts" / "metrics.csv").open("a") as file:
            file.write("0,4,40,160,9.9,0.5\n1,4,40,160,9.9,0.5\n0,5,5")
        run(Config(), options(tmp_path / "parts", steps=60, resume=True))
        assert rows(tmp_path / "parts") == rows(tmp_path / "whole")

    def test_goes_back_to_the_checkpoint_before_a_truncated_one(self, tmp_path, capsys):
        whole = run(Config(), options(tmp_path / "whole", steps=60))
        folder = tmp_path / "parts"
        run(Config(), options(folder, steps=20))
        run(Config(), options(folder, steps=40, resume=True))
        damage(folder / "checkpoints" / "40.npz")
        assert equal(run(Config(), options(folder, steps=60, resume=True)), whole)
        assert rows(folder) == rows(tmp_path / "whole")
        assert f"checkpoint {folder / 'checkpoints' / '40.npz'} is damaged" in capsys.readouterr().err
        assert {path.name for path in (folder / "checkpoints").iterdir()} == {"20.npz", "60.npz"}

    def test_refuses_what_does_not_fit(self, tmp_path):
        with pytest.raises(UsageError, match=f"{tmp_path / 'none'} holds no run"):
            run(Config(), options(tmp_path / "none", resume=True))
        assert not (tmp_path / "none").exists()
        run(Config(), options(tmp_path))
        before = files(tmp_path)
        for config, others, error in [
            (Config(inner=Inner(gain=2.0)), {}, "config.inner.gain was None in .* and is 2.0 now"),
            (Config(learning_rate=0.2, is_slow=True), {}, "config.learning_rate was 0.1 in .* and is 0.2 now"),
            (Config(), {"steps": 40}, "--steps=40, less than the 50 of the run in"),
        ]:
            with pytest.raises(UsageError, match=error):
                run(config, options(tmp_path, resume=True, **others))
        with pytest.raises(UsageError, match=r"seeds was \[0, 1\] in .* and is \[0\] now"):
            run(Config(), RunOptions(seeds=(0,), steps=50, out=str(tmp_path), resume=True))
        assert files(tmp_path) == before

    def test_refuses_a_run_without_a_good_checkpoint(self, tmp_path):
        run(Config(), options(tmp_path))
        damage(tmp_path / "checkpoints" / "50.npz")
        with pytest.raises(UsageError, match=f"checkpoint {tmp_path}/checkpoints/50.npz is damaged"):
            run(Config(), options(tmp_path, resume=True))
        for path in (tmp_path / "checkpoints").rglob("*"):
            path.unlink() if path.is_file() else None
        os.rename(tmp_path / "checkpoints", tmp_path / "elsewhere")
        with pytest.raises(UsageError, match="holds no checkpoint: --overwrite begins the run anew"):
            run(Config(), options(tmp_path, resume=True))

    def test_refuses_a_damaged_config_and_lost_rows(self, tmp_path):
        run(Config(), options(tmp_path))
        os.truncate(tmp_path / "metrics.csv", 100)
        with pytest.raises(UsageError, match="metrics.csv has lost rows"):
            run(Config(), options(tmp_path, resume=True))
        os.truncate(tmp_path / "config.json", 100)
        with pytest.raises(UsageError, match="config.json is damaged"):
            run(Config(), options(tmp_path, resume=True))


def damage(checkpoint):
    os.truncate(checkpoint, checkpoint.stat().st_size // 2)


class TestDisk:
    def test_metrics_on_a_full_one(self, tmp_path):
        row = {"seed": 0, "update": 1, "env_steps": 1, "env_frames": 1}
        with Run(options(tmp_path / "run"), experiment="a", name="b", config=Config()) as one:
            (tmp_path / "run" / "metrics.csv").symlink_to("/dev/full")
            with pytest.raises(DiskError, match=f"cannot write {tmp_path}/run/metrics.csv: No space left on device"):
                one.log([row])

    def test_half_a_row_is_taken_back(self, tmp_path, monkeypatch):
        row = {"seed": 0, "update": 1, "env_steps": 1, "env_frames": 1}
        real_open = Path.open

        def open_full(path, mode="r", **others):
            file = real_open(path, mode, **others)

            class Full:
                def __enter__(self):
                    return self

                def __exit__(self, *_):
                    file.close()

                def write(self, text):
                    file.write(text[:5])
                    file.flush()
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            return Full()

        with Run(options(tmp_path), experiment="a", name="b", config=Config()) as one:
            one.log([row])
            before = (tmp_path / "metrics.csv").read_bytes()
            monkeypatch.setattr(Path, "open", open_full)
            with pytest.raises(DiskError, match="No space left"):
                one.log([row])
            monkeypatch.undo()
            assert (tmp_path / "metrics.csv").read_bytes() == before

    def test_ends_a_program_with_one_line(self):
        result = start("--out=/proc/nothing", program=PROGRAM)
        assert (result.returncode, result.stderr.count("\n")) == (1, 1)
        assert result.stderr.startswith("error: cannot write /proc/nothing: ")


class TestSignals:
    def test_handlers_are_given_back(self):
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        with Signals() as signals:
            assert signal.getsignal(signal.SIGINT) != before[0] and signals.number == 0
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.number == signal.SIGTERM
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        assert signal.set_wakeup_fd(-1) == -1

    def test_outside_the_main_thread_they_are_left_alone(self, tmp_path):
        states = []
        thread = threading.Thread(target=lambda: states.append(run(Config(), options(tmp_path))))
        thread.start()
        thread.join()
        assert states[0].num_updates == 5

    def test_stopping_saves_and_says_how_to_go_on(self, tmp_path, monkeypatch, capsys):
        advance = Sums.advance

        def stop_at_20(self, state, step):
            if step == 10:
                signal.raise_signal(signal.SIGINT)
            return advance(self, state, step)

        monkeypatch.setattr(Sums, "advance", stop_at_20)
        with pytest.raises(SystemExit) as stop:
            run(Config(), options(tmp_path))
        assert stop.value.code == 130
        assert (tmp_path / "checkpoints" / "20.npz").is_file() and len(rows(tmp_path)) == 2 * 2
        assert f"--resume --out={tmp_path}" in capsys.readouterr().err

    def test_a_stopped_program_goes_on_to_the_same_result(self, tmp_path):
        arguments = ["--steps=200", f"--out={tmp_path / 'parts'}"]
        process = subprocess.Popen(
            [*PROGRAM, *arguments, "--config.is_slow"], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 60
        while not (tmp_path / "parts" / "metrics.csv").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 143
        assert "Traceback" not in stderr
        assert f"--resume --out={tmp_path / 'parts'}" in stderr
        assert 0 < len(rows(tmp_path / "parts")) < 40
        resumed = run(Config(is_slow=True), options(tmp_path / "parts", steps=200, resume=True))
        assert equal(resumed, run(Config(is_slow=False), options(tmp_path / "whole", steps=200)))
        assert rows(tmp_path / "parts") == rows(tmp_path / "whole")

    def test_the_second_one_ends_at_once(self, tmp_path):
        program = (
            "import time\n"
            "from frodo.runs.signals import Signals\n"
            "with Signals():\n"
            "    print('open', flush=True)\n"
            "    time.sleep(60)\n"
        )
        process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "open\n"
        for _ in range(2):
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        assert process.wait(timeout=20) == 130
