"""Capabilities of recipes besides training, and the one message of recipes that lack them."""

import pytest

from pretrainkit.errors import InputError
from pretrainkit.recipes import capabilities, exchange
from pretrainkit.recipes.capabilities import Capability
from pretrainkit.recipes.registry import able, entries, find_recipe, recipes_able

CAPABILITIES = [
    one
    for one in (vars(capabilities) | vars(exchange)).values()
    if isinstance(one, type) and issubclass(one, Capability) and one is not Capability
]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_recipe_has_a_capability_or_the_message_names_those_that_have_it(capability):
    having = recipes_able(capability)
    assert having
    for name in entries():
        recipe = find_recipe(name)
        if name in having:
            assert able(recipe, capability) is recipe
        else:
            with pytest.raises(InputError, match=capability.does) as error:
                able(recipe, capability)
            assert ", ".join(having) in str(error.value)
