"""The laws as pytest tests: what ``twinlaw verify`` runs, and what a test file asks for.

from twinlaw.properties.suite import laws_of
test_laws = laws_of(subject)
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from twinlaw.properties.laws import LAWS, Law
from twinlaw.properties.prove import prove
from twinlaw.properties.subjects import OPS, Subject

__all__ = ["laws_of"]

Test = Callable[..., None]


def laws_of(*subjects: Subject) -> Test:
    """A test that holds every subject to every law; the plugin says on which device, how hard.

    Laws that say nothing on that device are deselected, and the final table says so.
    """
    pairs = [
        pytest.param(law, subject, id=f"{subject.name}-{law.name}")
        for subject in subjects
        for law in LAWS
    ]

    @pytest.mark.parametrize(("law", "subject"), pairs)
    def test(law: Law, subject: Subject, twin: object, request: pytest.FixtureRequest) -> None:
        options = request.getfixturevalue("twin")
        proof = prove(law, subject, options.device, options.profile)
        request.node.user_properties += [
            ("twin-op", subject.name),
            ("twin-law", law.name),
            ("twin-examples", proof.examples),
            ("twin-worst", proof.worst),
            ("twin-seconds", proof.seconds),
        ]

    return test


test_laws = laws_of(*(op.subject() for op in OPS.values()))
