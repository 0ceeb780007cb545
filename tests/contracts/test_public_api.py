"""What users may rely on; a change here is a change for all of them."""

import inspect
import subprocess
import sys
from importlib.metadata import version

import pytest

import queen
from queen.extras import DISTRIBUTION


def names(function) -> list[str]:
    """Parameters, those that must be named marked with a star."""
    parameters = inspect.signature(function).parameters.values()
    return [("*" if p.kind is p.KEYWORD_ONLY else "**" if p.kind is p.VAR_KEYWORD else "") + p.name for p in parameters]


def test_the_public_names():
    assert set(queen.__all__) == {"Guard", "Verdict", "calibrate", "certify", "check", "load", "protect"}
    assert all(hasattr(queen, name) for name in queen.__all__)
    assert queen.__version__ == version(DISTRIBUTION)


SIGNATURES = {
    "protect": (
        queen.protect,
        "model train_data *calibration *foreign *weak *head *policy *alpha *sentinel *observe *limits *absolute_radius "
        "*max_copy *price "
        "*keep_label *mapping *shadows *min_agreement *input_range *factory *factory_args *class_names *pixel_mean "
        "*pixel_std *ledger *secret *seed *progress",
    ),
    "calibrate": (queen.calibrate, "guard data *trusted *foreign *conditions *start_over *seed *progress"),
    "load": (queen.load, "path model *ledger *secret *new_secret *device **changes"),
    "check": (queen.check, "model data *calibration *head"),
    "certify": (queen.certify, "epsilon delta threshold *radius"),
    "Guard": (queen.Guard, "bundle *ledger *secret"),
    "Guard.answer": (queen.Guard.answer, "self x *client *groups"),
    "Guard.as_client": (queen.Guard.as_client, "self name *groups"),
    "Guard.with_options": (queen.Guard.with_options, "self **changes"),
    "Guard.save": (queen.Guard.save, "self path"),
}


@pytest.mark.parametrize(("function", "expected"), SIGNATURES.values(), ids=SIGNATURES)
def test_the_signatures(function, expected):
    assert names(function) == expected.split()


def test_the_defaults_of_protect():
    defaults = {p.name: p.default for p in inspect.signature(queen.protect).parameters.values()}
    assert defaults["policy"] is None  # sentinel with calibration images, else paper
    assert defaults["shadows"] == "head"
    assert defaults["observe"] is defaults["keep_label"] is defaults["weak"] is False
    assert defaults["seed"] == 0
    assert defaults["alpha"] is defaults["sentinel"] is defaults["calibration"] is None


def test_groups_are_off_unless_named():
    for function in (queen.Guard.answer, queen.Guard.as_client):
        assert inspect.signature(function).parameters["groups"].default == ()


BASE_ONLY = """
import importlib, importlib.machinery, pkgutil

find = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = lambda name, *rest: (
    None if name.split(".")[0] in {blocked} else find(name, *rest)
)
for name in {blocked}:
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    raise SystemExit(name + " is not blocked")
import queen, queen.core, queen.ledger
for package in (queen.core, queen.ledger):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
import torch
torch.manual_seed(0)
x, y = torch.randn(60, 4), torch.arange(60) % 2
guard = queen.protect(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)), (x, y),
                      min_agreement=0)
print(len(guard.answer(x, client="a").verdicts))
"""


@pytest.mark.slow
def test_the_library_works_with_its_base_dependencies_alone():
    blocked = {"transformers", "mlxtend", "pydantic", "sklearn", "matplotlib", "pandas", "PIL", "pyarrow", "joblib"}
    script = BASE_ONLY.format(blocked=blocked)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "60"


QUIET = """
import torch
state = torch.get_rng_state()
import queen
from queen.extras import DISTRIBUTION
assert torch.equal(state, torch.get_rng_state())
"""


@pytest.mark.slow
def test_importing_the_library_is_quiet():
    command = [sys.executable, "-W", "error::UserWarning", "-c", QUIET]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
