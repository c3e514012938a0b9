# SPDX-License-Identifier: Apache-2.0
"""The gates on real libraries: one that fits, and one for each way not to."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from patchctl.cli.app import funnel
from patchctl.cli.main import main
from patchctl.errors import UsageError
from patchctl.formats.target import Target
from patchctl.stages import verify as stage
from patchctl.stages.build import load_target
from patchctl.stages.toolchain import Toolchain
from patchctl.stages.verify import Verification, gate_error, verify
from patchctl.system.project import Project
from patchctl.system.records import Record, load_record, save_record
from patchctl.system.report import QuietReporter

from .conftest import record_build

pytestmark = pytest.mark.nvcc

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "data" / "verify"
BOTH = ("-gencode=arch=compute_70,code=[sm_70,compute_70]",)
SCHEMAS = """\
namespace = "_vllm_fa2_C"
[[operators]]
schema = "varlen_fwd(Tensor! q, Tensor!? out, float softmax_scale) -> Tensor[]"
"""

Made = tuple[Path, Path]
"""A library and the ptxas log of its kernels."""
Make = Callable[..., Made]


@pytest.fixture(scope="session")
def make_library(cuda: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Compiles and links a variant of ``tests/data/verify``, each part once."""
    folder = tmp_path_factory.mktemp("libraries")
    spec = find_spec("torch")
    assert spec and spec.submodule_search_locations
    torch = Path(next(iter(spec.submodule_search_locations)))

    def once(output: Path, command: Sequence[object], log: Path | None = None) -> Path:
        if not output.exists():
            done = subprocess.run(
                [str(a) for a in command], cwd=folder, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            if log is not None:
                log.write_text(done.stderr)
        return output

    def make(
        kernels: Sequence[str] = BOTH, operators: Sequence[str] = (), link: Sequence[str] = ()
    ) -> Made:
        name = "".join(c if c.isalnum() else "_" for c in "".join((*kernels, *operators, *link)))
        kernel = folder / f"k{abs(hash(tuple(kernels))):x}.o"
        host = folder / f"h{abs(hash(tuple(operators))):x}.o"
        log = kernel.with_suffix(".o.ptxas.log")
        nvcc: list[object] = [cuda.nvcc, "-std=c++17", "-Xcompiler=-fPIC", "-Xptxas=-v", "-w"]
        once(kernel, [*nvcc, *kernels, "-c", SOURCES / "kernels.cu", "-o", kernel], log)
        includes = [torch / "include", cuda.include, sysconfig.get_path("include")]
        definitions = ["Py_LIMITED_API=0x030a0000", "TORCH_TARGET_VERSION=0x020a000000000000"]
        gxx: list[object] = ["g++", "-std=c++20", "-O0", "-fPIC", "-fvisibility=hidden"]
        gxx += [f"-I{i}" for i in includes] + [f"-D{d}" for d in definitions]
        once(host, [*gxx, *operators, "-c", SOURCES / "operators.cpp", "-o", host])
        library = folder / name / "_vllm_fa2_C.abi3.so"
        library.parent.mkdir(exist_ok=True)
        libraries = [f"-L{torch / 'lib'}", f"-L{cuda.lib64}", "-ltorch_cpu", "-lcudart"]
        shared = ["g++", "-shared", "-Wl,--as-needed", kernel, host, *libraries, *link]
        once(library, [*shared, "-o", library])
        return library, log

    return make


class Case:
    """A project with one library in its build folder."""

    def __init__(self, root: Path, cuda: Toolchain) -> None:
        self.project = Project(root, root / "build" / "out")
        self.cuda = cuda
        self.target: Target = load_target(self.project, "sm70")
        self.library = self.project.objects("sm70") / self.target.filename

    def put(self, made: Made) -> None:
        """Lay a library and its log where ``build`` leaves them."""
        objects = self.project.objects("sm70") / "obj"
        objects.mkdir(parents=True, exist_ok=True)
        shutil.copy(made[0], self.library)
        shutil.copy(made[1], objects / "kernels.cu.o.ptxas.log")
        (objects / "kernels.cu.o").touch()
        record_build(self.project, self.target)

    def verify(self, *, update: bool = False, force: bool = False) -> Verification:
        """Run the gates."""
        report = QuietReporter()
        return verify(self.project, self.target, self.cuda, report, update=update, force=force)

    def errors(self, *, update: bool = False) -> list[str]:
        """What fails, as text."""
        found = self.verify(update=update, force=True).findings
        return [f"{f.gate}: {f.subject}: {f.message}" for f in found if f.severity == "error"]


@pytest.fixture(scope="session")
def fitting(cuda: Toolchain, make_library: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose library was verified and fits its locks."""
    root = tmp_path_factory.mktemp("fitting")
    for folder in ("patches", "vendor", "build"):
        (root / folder).mkdir()
    for name in ("sm70.toml", "sm70.abi.toml"):
        shutil.copy(ROOT / "build" / name, root / "build")
    (root / "build" / "sm70.schemas.toml").write_text(SCHEMAS)
    case = Case(root, cuda)
    case.put(make_library())
    done = case.verify(update=True)
    assert done.findings == []
    assert len(done.changes) == 1 + len(KERNELS)
    return root


@pytest.fixture
def case(fitting: Path, tmp_path: Path, cuda: Toolchain) -> Case:
    """A copy of the project that fits, to spoil."""
    shutil.copytree(fitting, tmp_path / "project")
    return Case(tmp_path / "project", cuda)


KERNELS = [
    "(anonymous namespace)::hidden_kernel(float*)",
    "demo::copy_kernel<false>(float const*, float*)",
    "demo::copy_kernel<true>(float const*, float*)",
]


def test_a_library_that_fits_passes_with_a_row_for_each_kernel(case: Case) -> None:
    done = case.verify(force=True)
    assert done.findings == []
    rows = {r.measured.name: r for r in done.resources}
    assert sorted(rows) == KERNELS
    copy = rows[KERNELS[1]]
    assert (copy.measured.static_shared, copy.threads, copy.ctas_per_sm) == (1024, 256, 8)
    assert (copy.measured.spill_stores, copy.measured.stack) == (0, 0)
    assert rows[KERNELS[0]].ctas_per_sm == 32
    assert done.dispatch == {"varlen_fwd": ("CUDA",)}
    assert done.torch


def test_nothing_is_looked_at_again_until_something_changes(case: Case) -> None:
    assert case.verify().skipped
    with case.project.schemas_file("sm70").open("a") as file:
        file.write("# a comment\n")
    assert not case.verify().skipped
    assert case.verify().skipped


def test_a_failure_forgets_the_earlier_success(case: Case) -> None:
    case.project.schemas_file("sm70").write_text(SCHEMAS.replace("float ", "int "))
    assert case.verify().failed
    assert load_record(case.project, "verify-sm70") is None


def test_drift_from_the_lock_fails_and_an_update_shows_and_ends_it(case: Case) -> None:
    lock = case.project.resources_file("sm70")
    text = lock.read_text()
    lock.write_text(text.replace("ctas_per_sm = 8", "ctas_per_sm = 9"))
    assert case.errors() == [
        f"resources: {name}: CTAs an SM 8, locked 9 (worse)" for name in KERNELS[1:]
    ]
    done = case.verify(update=True)
    assert done.changes == [f"{name}: CTAs an SM 8, locked 9 (worse)" for name in KERNELS[1:]]
    assert lock.read_text() == text


def test_a_spill_breaks_the_limit_and_is_never_locked(case: Case, make_library: Make) -> None:
    case.put(make_library(kernels=(*BOTH, "-DSPILL")))
    before = case.project.resources_file("sm70").read_bytes()
    errors = case.errors(update=True)
    spill = next(e for e in errors if "spill_kernel" in e and "limit" in e)
    assert "bytes of spill stores (at most 0)" in spill
    assert "bytes of stack (at most 0)" in spill
    assert any("refused to lock" in e for e in errors)
    assert case.project.resources_file("sm70").read_bytes() == before


def test_an_unknown_kernel_and_a_vanished_one_are_errors(case: Case) -> None:
    lock = case.project.resources_file("sm70")
    lock.write_text(lock.read_text().replace("copy_kernel<true>", "copy_kernel<0>"))
    errors = case.errors()
    assert f"resources: {KERNELS[2]}: unknown kernel: it has no budget" in errors
    assert any("copy_kernel<0>" in e and "vanished" in e for e in errors)


def test_a_kernel_of_a_patch_that_is_not_applied_has_not_vanished(case: Case) -> None:
    lock = case.project.resources_file("sm70")
    later = lock.read_text().split("[[kernels]]")[1].replace("hidden_kernel", "later_kernel")
    entry = f'\n[[kernels]]{later.rstrip()}\nsince = "0002-b.patch"\n'
    lock.write_text(lock.read_text() + entry)
    names = {"patch 0001-a.patch": "x", "patch 0002-b.patch": "y"}
    for last, vanished in (("0001-a.patch", 0), ("0002-b.patch", 1), ("the last of the series", 1)):
        inputs = {"last patch": last, **names}
        save_record(case.project, Record(stage="replay", inputs=inputs, outputs={}))
        assert len(case.errors()) == vanished, last


def test_a_log_of_another_build_does_not_prove_anything(case: Case) -> None:
    log = next(case.project.objects("sm70").rglob("*.ptxas.log"))
    log.write_text(log.read_text().replace("1024 bytes smem", "2048 bytes smem"))
    assert all("ptxas reports 2048 bytes of static shared memory" in e for e in case.errors())
    log.unlink()
    assert len([e for e in case.errors() if "spill stores not known" in e]) == len(KERNELS)


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        (("-gencode=arch=compute_70,code=sm_70",), "PTX: embedded for none, expected exactly"),
        (
            (*BOTH, "-gencode=arch=compute_80,code=sm_80"),
            "SASS: embedded for sm_70, sm_80, expected exactly sm_70",
        ),
    ],
)
def test_wrong_architectures_are_named(
    case: Case, make_library: Make, kernels: tuple[str, ...], words: str
) -> None:
    case.put(make_library(kernels=kernels))
    (error,) = case.errors()
    assert words in error


def test_a_changed_schema_names_the_argument_and_the_fate_of_callers(
    case: Case, make_library: Make
) -> None:
    case.put(make_library(operators=("-DSPLITS",)))
    assert case.errors() == [
        "schemas: varlen_fwd: argument `int num_splits` was added at position 3; "
        "callers break by torch's rule"
    ]


def test_a_library_that_aborts_its_process_is_a_finding(case: Case, make_library: Make) -> None:
    case.put(make_library(operators=("-DABORT",)))
    (error,) = case.errors()
    assert "died when it should load the library (killed by SIGABRT)" in error
    assert "namespace _vllm_fa2_C already registered by other.so" in error


def test_a_library_that_ends_its_process_badly_is_a_finding(case: Case, make_library: Make) -> None:
    """All schemas were read by then, and they fit."""
    case.put(make_library(operators=("-DABORT_AT_EXIT",)))
    (error,) = case.errors()
    assert "killed by SIGABRT" in error


def test_torchs_cpp_interface_is_refused(case: Case, make_library: Make) -> None:
    case.put(make_library(operators=("-DCPP_API",)))
    errors = case.errors()
    assert any("at::set_num_threads_of_nobody(int)" in e and "C++ interface" in e for e in errors)
    assert any(e.startswith("schemas: ") and "could not load the library" in e for e in errors)


def test_a_library_without_module_entry_is_refused(case: Case, make_library: Make) -> None:
    case.put(make_library(operators=("-DNO_MODULE",)))
    errors = case.errors()
    assert any(e.startswith("symbols: PyInit__vllm_fa2_C: ") for e in errors)
    assert any("could not import the module" in e for e in errors)


def test_a_search_path_of_the_build_machine_is_refused(case: Case, make_library: Make) -> None:
    case.put(make_library(link=("-Wl,-rpath,/opt/somewhere",)))
    (error,) = case.errors()
    assert error.startswith("symbols: /opt/somewhere: ")


def test_a_library_that_is_cut_off_is_not_loaded(case: Case) -> None:
    data = case.library.read_bytes()
    case.library.write_bytes(data[: len(data) // 2])
    record_build(case.project, case.target)
    (error,) = case.errors()
    assert error.startswith("file: _vllm_fa2_C.abi3.so: cut off")


def test_a_library_that_was_replaced_after_the_build_is_refused(case: Case) -> None:
    case.library.write_bytes(case.library.read_bytes() + b"one byte more than was built")
    (error,) = case.errors()
    assert "replaced after the build" in error


def test_a_library_that_no_build_made_is_refused(case: Case) -> None:
    (case.project.records / "build-sm70.json").unlink()
    (error,) = case.errors()
    assert "made by no build that is on record" in error


def test_a_library_that_is_replaced_under_the_gates_does_not_pass(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stage.probe_library

    def replaced(*arguments: Any) -> Any:
        probe = whole(*arguments)
        case.library.write_bytes(case.library.read_bytes() + b"never judged")
        return probe

    monkeypatch.setattr(stage, "probe_library", replaced)
    (error,) = case.errors()
    assert "was replaced while the gates looked at it" in error
    assert load_record(case.project, "verify-sm70") is None


def test_a_lock_that_changes_under_the_gates_is_held_against_next_time(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, schemas = stage.probe_library, case.project.schemas_file("sm70")

    def edited(*arguments: Any) -> Any:
        schemas.write_text(SCHEMAS.replace("float softmax_scale", "int softmax_scale"))
        return whole(*arguments)

    monkeypatch.setattr(stage, "probe_library", edited)
    assert case.errors() == []
    monkeypatch.undo()
    assert case.verify().failed


def test_device_code_that_cannot_be_read_is_a_finding_and_the_other_gates_speak(
    case: Case,
) -> None:
    home = case.project.out / "cuda"
    broken = home / "bin" / "cuobjdump"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\necho 'fatal: invalid fatbinary' >&2\nexit 255\n")
    broken.chmod(0o755)
    case.cuda = replace(case.cuda, home=home)
    (case.project.schemas_file("sm70")).write_text(SCHEMAS.replace("out", "o"))
    errors = case.errors()
    assert any("cannot read its device code: exit code 255: fatal" in e for e in errors)
    assert any("renamed" in e for e in errors)


def test_every_gate_speaks_in_one_run(case: Case, make_library: Make) -> None:
    case.put(
        make_library(
            kernels=("-gencode=arch=compute_70,code=sm_70", "-DSPILL"),
            operators=("-DSPLITS",),
            link=("-Wl,-rpath,/opt/somewhere",),
        )
    )
    gates = {e.split(":")[0] for e in case.errors()}
    assert gates == {"symbols", "architectures", "resources", "schemas"}


def test_without_a_library_the_next_command_is_named(case: Case) -> None:
    case.library.unlink()
    with pytest.raises(UsageError) as caught:
        case.verify()
    assert caught.value.hint == "patchctl build"


def test_a_missing_expectation_file_is_named(case: Case) -> None:
    case.project.schemas_file("sm70").unlink()
    with pytest.raises(UsageError, match=r"build/sm70\.schemas\.toml"):
        case.verify()


def run_command(
    case: Case, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line."""
    home = str(case.cuda.home)
    argv = ["-C", str(case.project.root), *arguments, "--cuda-home", home]
    code = funnel(main, argv)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command_prints_rows_findings_and_total_and_exits_1(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = case.project.resources_file("sm70")
    lock.write_text(lock.read_text().replace("ctas_per_sm = 8", "ctas_per_sm = 9"))
    code, out, err = run_command(case, capsys, "verify")
    assert code == 1
    assert "demo::copy_kernel<true>" in out
    assert "CTAs an SM 8, locked 9 (worse)" in out
    assert out.rstrip().endswith("2 errors")
    assert "error: `_vllm_fa2_C.abi3.so` does not pass: 2 errors" in err


def test_json_holds_everything_on_success_and_on_failure(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run_command(case, capsys, "--json", "verify", "--force")
    passed = json.loads(out)
    assert (code, passed["command"], passed["findings"]) == (0, "verify", [])
    assert [r["name"] for r in passed["resources"]] == KERNELS
    case.project.resources_file("sm70").unlink()
    code, out, _ = run_command(case, capsys, "--json", "verify")
    failed = json.loads(out)
    assert (code, failed["error"]["kind"]) == (1, "gate")
    assert len(failed["error"]["data"]["findings"]) == len(KERNELS)
    assert len(failed["error"]["data"]["resources"]) == len(KERNELS)


def test_the_error_of_a_failed_gate_has_exit_code_1(case: Case) -> None:
    case.project.resources_file("sm70").unlink()
    error = gate_error(case.verify())
    assert error.exit_code == 1
    assert error.message == "`_vllm_fa2_C.abi3.so` does not pass: 3 errors"
