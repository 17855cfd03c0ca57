"""Rule files from strangers: whatever is in one, it is described, or refused by a ValueError of one short line."""

import dataclasses
import io
import json
import random
import zipfile

import jax
import numpy as np
import pytest

from experiments.runs import command_line, settings
from frodo import archives, files
from frodo.rules import disco103_weights
from frodo.rules.files import CONFIG, ORIGIN, load_origin, load_rule
from frodo.settings import presets
from frodo.settings.config import AgentConfig
from meta.targets import disco103
from tests.small_rule import save_small_rule

MAX_MESSAGE = 300  # characters beside the path
ETA = "target_network/lstm/b"
HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }"


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """The members of a small rule's file, by name."""
    path = tmp_path_factory.mktemp("rule") / "rule.npz"
    save_small_rule(path)
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def zipped(members, method=zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return buffer.getvalue()


def as_array(data: bytes, shape: str = "", descr: str = "|u1", version: int = 1) -> bytes:
    """Bytes in NumPy's format, whatever shape its header claims."""
    header = (HEADER % (shape or f"({len(data)},)")).replace("<f4", descr).encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2, "little") + header + data


def with_json(members, key, change):
    """The members with JSON that was changed, or with the text that `change` returns in place of it."""
    array = np.load(io.BytesIO(members[f"{key}.npy"]))
    record = json.loads(array.tobytes())
    text = change(record)
    return members | {f"{key}.npy": as_array((text if isinstance(text, str) else json.dumps(record)).encode())}


def short(error, path) -> str:
    message = str(error)
    assert type(error) is ValueError and "\n" not in message
    assert len(message.replace(str(path), "")) < MAX_MESSAGE, message
    return message


def refusal(path, load=load_rule) -> str:
    with pytest.raises(ValueError) as error:
        load(path)
    return short(error.value, path)


def set_setting(dotted, value):
    def change(record):
        *parts, last = dotted.split(".")
        for part in parts:
            record = record[part]
        record[last] = value

    return change


@pytest.mark.parametrize(
    ("dotted", "value", "expected"),
    [
        ("batch_size", "x", "batch_size is 'x', expected a whole number"),
        ("batch_size", 1.5, "batch_size is 1.5, expected a whole number"),
        ("batch_size", True, "batch_size is True, expected a whole number"),
        ("batch_size", 10**30, "batch_size is 100.*, expected a whole number"),
        ("is_acting_interleaved", 1.0, "is_acting_interleaved is 1.0, expected true or false"),
        ("network.action_model", float("inf"), "'config.json' is no JSON: Infinity"),
        ("network.hidden", 5, "network.hidden is 5, expected at most 10000 entries"),
        ("network.hidden", [1.0], "network.hidden is 1.0, expected a whole number"),
        ("network.hidden", [1] * 10_001, "expected at most 10000 entries"),
        ("network.head_stddev", "x", "network.head_stddev is 'x', expected a number"),
        ("network", [], r"network is \[\], expected settings by name"),
        ("optimizer.learning_rate", None, "optimizer.learning_rate is None, expected a number"),
        ("optimizer.learning_rate", "nan", "optimizer.learning_rate is 'nan', expected a number"),
        ("optimizer.learning_rate", float("nan"), "NaN"),
        ("optimizer.name", "x" * 10**5, "optimizer.name is 'xx.*, expected a text of at most 10000"),
        ("rule.name", {}, "rule.name is {}, expected a text"),
        ("rule", {"name": "impala", "settings": {}}, "rule.name is 'impala', expected one that has an η to learn"),
        ("rule.settings.lstm", 10**18, "rule"),
        ("rule.settings.inputs", [["reward"]], "rule.inputs is .*, expected a text"),
        ("rule.settings.zzz", 1, "'zzz' is no setting of rule"),
        ("z" * 10**5, 1, "'zzz"),
        ("format", [3] * 10**5, "format is"),
    ],
)
def test_a_setting_of_another_type_is_named(tmp_path, members, dotted, value, expected):
    path = tmp_path / "rule.npz"
    path.write_bytes(zipped(with_json(members, CONFIG, set_setting(dotted, value))))
    with pytest.raises(ValueError, match=expected):
        load_rule(path)
    refusal(path)


@pytest.mark.parametrize(
    ("dotted", "value"),
    [("env_steps", "x"), ("env_steps", 1.5), ("note", 5), ("envs", "toy"), ("envs", [5]), ("cpu_seconds", [])],
)
def test_an_origin_of_other_types_is_refused(tmp_path, members, dotted, value):
    path = tmp_path / "rule.npz"
    path.write_bytes(zipped(with_json(members, ORIGIN, set_setting(dotted, value))))
    for load in (load_rule, load_origin):
        assert f"it has no good 'origin.json': {dotted} is" in refusal(path, load)


def test_a_rule_may_come_from_as_many_environments_as_a_program_takes(tmp_path, members):
    envs = [f"toy/grid_world/{i}" for i in range(files.MAX_ENTRIES)]
    (tmp_path / "rule.npz").write_bytes(zipped(with_json(members, ORIGIN, set_setting("envs", envs))))
    assert len(load_rule(tmp_path / "rule.npz").origin.envs) == 10_000
    assert command_line.MAX_ENTRIES is settings.MAX_ENTRIES is files.MAX_ENTRIES


@pytest.mark.parametrize("key", [CONFIG, ORIGIN])
@pytest.mark.parametrize("text", ["[" * 200_000, "{" * 9, "[]", "null", '"x"', "3", "", '{"rule": []}', " " * 2**21])
def test_json_that_is_none_of_a_rule_is_refused(tmp_path, members, key, text):
    path = tmp_path / "rule.npz"
    path.write_bytes(zipped(with_json(members, key, lambda _: text)))
    refusal(path)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (as_array(b"1234", "(1000000000000,)", "<f4"), "has .* bytes, but is float32"),
        (as_array(b"1234", f"({10**30},)", "<f4"), "has .* bytes, but is float32"),
        (as_array(b"1234", f"({10**300},)", "<f4"), "is no array of numbers"),
        (as_array(b"1234", "(-1,)", "<f4"), "is no array of numbers"),
        (as_array(b"1234", "(" * 300, "<f4"), "is no array of numbers"),
        (as_array(b"1234", "(1,)", "|O"), "is no array of numbers"),
        (as_array(b"1234", "(1,)", "<f4", version=3), "is not in NumPy's format"),
        (as_array(b"1234", "(1,)", "<f4", version=9), "is not in NumPy's format"),
        (as_array(b"12345678", "(1,)", "<f8"), "is float64"),
        (b"", "is not in NumPy's format"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 100_000, "is no array of numbers"),
    ],
)
def test_a_header_is_checked_before_its_array_is_read(tmp_path, members, data, expected):
    path = tmp_path / "rule.npz"
    path.write_bytes(zipped(members | {f"{ETA}.npy": data}))
    with pytest.raises(ValueError, match=expected):
        load_rule(path)
    refusal(path)


def test_a_member_that_is_not_of_the_rule_is_never_unpacked(tmp_path, members, monkeypatch):
    path = tmp_path / "rule.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
        with file.open("zeros.npy", "w", force_zip64=True) as member:
            member.write(as_array(b"", "(50000000,)"))
            for _ in range(50):
                member.write(bytes(10**6))
    read, num_bytes = zipfile.ZipExtFile.read, []

    def counted(self, n=-1):
        data = read(self, n)
        num_bytes.append(len(data))
        return data

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
    assert "key 'zeros' is not one of its rule" in refusal(path)
    assert sum(num_bytes) < 10**6


def test_a_size_that_lies_is_not_believed(tmp_path, members):
    """The table of contents says 12 bytes of data less, or more, than there are."""
    data = zipped(members)
    path = tmp_path / "rule.npz"
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        size = file.getinfo(f"{ETA}.npy").file_size
    at = data.rindex(f"{ETA}.npy".encode()) - 46 + 20  # compressed and whole size in the table of contents
    for lie in (size - 4, size + 4, 2**31, 2**32 - 1):
        path.write_bytes(data[:at] + 2 * lie.to_bytes(4, "little") + data[at + 8 :])
        refusal(path)


def test_ways_to_pack_that_are_not_known_and_names_that_are_none(tmp_path, members):
    path = tmp_path / "rule.npz"
    data = zipped(members)
    at = data.rindex(f"{ETA}.npy".encode()) - 46
    for place, value in ((8, 1), (10, 99)):  # encrypted; method 99
        path.write_bytes(data[: at + place] + value.to_bytes(2, "little") + data[at + place + 2 :])
        assert "is encrypted, or compressed in a way that is not known" in refusal(path)
    path.write_bytes(zipped(members, zipfile.ZIP_BZIP2))
    assert "is not known" in refusal(path)
    for name in ("x" * 60_000, "a\x1b[2J", "ä"):
        path.write_bytes(zipped(members | {name: b""}))
        assert "expected at most 200 ASCII characters" in refusal(path)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "w") as file:
        for name in (f"{CONFIG}.npy", f"{CONFIG}.npy"):
            file.writestr(name, members[name])
    assert "'config.json' is there twice" in refusal(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_rule_may_be_compressed_and_is_saved_as_it_was(tmp_path, members, method):
    path = tmp_path / "rule.npz"
    path.write_bytes(zipped(members, method))
    load_rule(path).save(tmp_path / "again.npz")
    again, first = load_rule(tmp_path / "again.npz"), load_rule(path)
    assert (again.config, again.origin) == (first.config, first.origin)
    jax.tree.map(np.testing.assert_array_equal, again.meta_params, first.meta_params)
    assert "discovered in: toy/catch" in again.describe()


def test_arrays_are_read_as_numpy_writes_them(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "fortran": np.asfortranarray(rng.normal(size=(3, 4))),
        "empty": np.zeros((2, 0), np.float32),
        "scalar": np.float16(1.5),
        "flags": np.array([True, False]),
        "swapped": np.arange(3, dtype=">i4"),
        "complex": np.array([1j]),
    }
    np.savez(tmp_path / "arrays.npz", **arrays)
    found = archives.read_arrays(tmp_path / "arrays.npz")
    for name, x in arrays.items():
        assert (found[name].dtype, found[name].shape) == (x.dtype, x.shape)
        np.testing.assert_array_equal(found[name], x)


def test_the_public_code_s_files_are_refused_before_their_arrays_are_read(tmp_path):
    shapes = disco103.expected_shapes()
    small = {f"{key}.npy": as_array(b"", "(1000000000000,)", "<f4") for key in shapes}
    (tmp_path / "weights.npz").write_bytes(zipped(small))
    for load in (load_rule, disco103_weights.read):
        assert "has" in refusal(tmp_path / "weights.npz", load)


@pytest.mark.parametrize("value", ["inf", "-inf", 3, 0.5])
def test_what_plain_writes_is_read_again(value):
    assert files.from_plain(float, value) == float(value)
    assert files.from_plain(float | None, value) == float(value) and files.from_plain(float | None, None) is None
    config = presets.for_rule("", "frodo").agent_only()
    assert files.from_plain(AgentConfig, files.as_written(dataclasses.asdict(config))) == config


def mutants(members, rng, num):
    """Files with flipped bytes, cut ones, ones with other JSON values, and with members swapped, lost or renamed."""
    whole = zipped(members)
    values = [None, True, -1, 0, 10**30, 1.5, "x", "inf", [], [[]], {}, "x" * 10**5, [1] * 5000, "nan"]
    for i in range(num):
        names = list(members)
        one, two = rng.sample(names, 2)
        kind = i % 5
        if kind == 0:
            data = bytearray(whole)
            for _ in range(rng.choice([1, 5, 100])):
                data[rng.randrange(len(data))] = rng.randrange(256)
            yield bytes(data)
        elif kind == 1:
            yield whole[: rng.randrange(len(whole))]
        elif kind == 2:
            yield zipped(members | {one: members[two], two: members[one]})
        elif kind == 3:
            key, value = rng.choice([CONFIG, ORIGIN]), rng.choice(values)
            array = np.load(io.BytesIO(members[f"{key}.npy"]))
            yield zipped(with_json(members, key, set_setting(rng.choice(paths(json.loads(array.tobytes()))), value)))
        else:
            changed = bytearray(members[one])
            changed[rng.randrange(min(128, len(changed)))] = rng.randrange(256)
            yield zipped({name: x for name, x in members.items() if name != two} | {one: bytes(changed)})


def paths(record, before=""):
    """The dotted names of all values."""
    found = []
    for key, value in record.items():
        found += [f"{before}{key}", *(paths(value, f"{before}{key}.") if isinstance(value, dict) else [])]
    return found


def test_whatever_is_in_a_file_it_is_described_or_refused_in_one_short_line(tmp_path, members):
    path, loaded = tmp_path / "rule.npz", 0
    for data in mutants(members, random.Random(0), 200):
        path.write_bytes(data)
        try:
            rule = load_rule(path)
        except ValueError as error:
            short(error, path)
            continue
        loaded += 1
        assert rule.describe()
        rule.save(tmp_path / "again.npz")
    assert 0 < loaded < 100
