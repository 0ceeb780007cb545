import inspect

import pytest

from queen import errors
from queen.errors import QueenError

ERRORS = {name: found for name, found in vars(errors).items() if inspect.isclass(found) and name.endswith("Error")}
KINDS = {
    "ShapeError": ValueError,
    "DtypeError": TypeError,
    "NotFiniteError": ValueError,
    "RangeError": ValueError,
    "EmptyBatchError": ValueError,
    "ClientError": ValueError,
    "LabelError": ValueError,
    "LimitsError": ValueError,
    "PolicyError": ValueError,
    "OptionError": ValueError,
    "BundleModelError": errors.BundleError,
}


def test_the_tree_is_complete():
    assert set(ERRORS) == {*KINDS, "QueenError", "HeadError", "EmptyClassError", "SpreadError", "TooFewClassesError",
                           "MapError", "BundleError", "SecretError", "LedgerError", "ModelError", "CalibrationError",
                           "RefusedError", "KeyStoreError", "LostStateError", "BindingError",
                           "MissingExtraError", "RandomError", "UpstreamError"}  # fmt: skip


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_one_except_catches_every_error_and_each_says_what_it_is(error):
    assert issubclass(error, QueenError)
    assert error.__doc__


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_errors_are_also_what_python_users_expect(name, kind):
    assert issubclass(ERRORS[name], kind)
