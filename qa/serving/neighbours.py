"""Goal 24: who shares a network prefix or a group with a thief is refused or answered right, never deceived."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qa.serving.rest import HOST, INFER, PATIENCE, head, talk
from qa.serving.scenario import Check, none_of
from tests.support.server import Server, started
from tests.support.serving import digits, honest, inference_body, noise

AT_ONCE = 20  # queries in one request of a thief, who is in a hurry
PROXY = "127.0.0.9"
GROUPS = json.dumps({"tenant": {"enforce_alarm": True}})
MODULE = "qa.broken.deceiving"


@dataclass(frozen=True)
class Client:
    """Somebody who asks: from this address of the machine, with this key, or through a proxy for this one."""

    address: str = HOST
    key: str = ""
    forwarded: str = ""

    def ask(self, server: Server, x: Tensor) -> tuple[int, Tensor]:
        """Status, and the labels of the answer (none unless the status is 200)."""
        body = inference_body(x)
        own = [f"Authorization: Bearer {self.key}"] if self.key else []
        own += [f"X-Forwarded-For: {self.forwarded}"] if self.forwarded else []
        with socket.create_connection((HOST, server.rest), PATIENCE, source_address=(self.address, 0)) as wire:
            reply = talk(wire, head("POST", INFER, *own, length=len(body)) + body)
        if reply.status != 200:
            return reply.status, torch.empty(0, dtype=torch.long)
        return 200, torch.tensor(reply.json["outputs"][0]["data"]).view(len(x), -1).argmax(1)


@dataclass
class Service:
    """What somebody benign got: right and wrong labels, and the statuses of requests without an answer."""

    right: int = 0
    wrong: int = 0
    others: Counter[int] = field(default_factory=Counter)

    @property
    def refused(self) -> float:
        """The share of requests that were refused."""
        return self.others[429] / max(1, self.right + self.wrong + self.others.total())

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.right} right, {self.wrong} wrong, {dict(self.others)} otherwise ({self.refused:.0%} refused)"


def served(server: Server, client: Client, count: int, first: int = 0) -> Service:
    """A benign client asks for one digit after the other, and compares with what the model itself says."""
    x, service = digits()[first : first + count], Service()
    for row, label in zip(x, honest(x).argmax(1), strict=True):
        status, labels = client.ask(server, row[None])
        if status != 200:
            service.others[status] += 1
        elif labels.item() == label.item():
            service.right += 1
        else:
            service.wrong += 1
    return service


def steal(server: Server, thieves: Sequence[Client], count: int) -> float:
    """Thieves take turns with queries that look like nothing; returns the share of them that went wrong for them."""
    x = noise(count, seed=7)
    truth, wrong = honest(x).argmax(1), 0
    for turn, start in enumerate(range(0, count, AT_ONCE)):
        rows = slice(start, start + AT_ONCE)
        status, labels = thieves[turn % len(thieves)].ask(server, x[rows])
        wrong += len(x[rows]) if status != 200 else int((labels != truth[rows]).sum())
    return wrong / count


@dataclass(frozen=True)
class Street:
    """Those who live together: thieves, their neighbour, and somebody who lives elsewhere."""

    name: str
    thieves: tuple[Client, ...]
    neighbour: Client
    elsewhere: tuple[Client, ...]


def visited(server: Server, street: Street, count: int) -> list[Check]:
    """Before the theft all are answered right; after it nobody benign gets a wrong label; others lose nothing."""
    before = served(server, street.neighbour, 10, first=200)
    caught = steal(server, street.thieves, 300)
    after, away = served(server, street.neighbour, count), [served(server, one, count) for one in street.elsewhere]
    strange = after.others.total() - after.others[429]
    return [
        Check(f"{street.name}: before the theft the neighbour is answered right", before.right == 10, str(before)),
        Check(f"{street.name}: the thief is caught", caught > 0.5, f"{caught:.0%} of its answers wrong or refused"),
        Check(f"{street.name}: the neighbour gets no wrong label", not after.wrong and not strange, str(after)),
        none_of(f"{street.name}: those elsewhere who do not get right answers",
                [str(one) for one in away if one.right != count], len(away)),
    ]  # fmt: skip


def run(folder: Path, quick: bool) -> list[Check]:
    """All streets, with decoys as the operator's choice for the accused, which neighbours must not get."""
    count = 40 if quick else 250
    return [*prefixes(folder, count), *behind_a_proxy(folder, count), *tenants(folder, count)]


def control(folder: Path, quick: bool) -> list[Check]:
    """The same on a server that gives decoys to whoever is near."""
    return [*prefixes(folder, 20, MODULE), *tenants(folder, 20, MODULE)]


def prefixes(folder: Path, count: int, module: str = "queen") -> list[Check]:
    """Clients without keys: the network prefix of a socket is the client, a key among them is somebody else."""
    with _served(folder / "prefixes", module, anonymous=True) as server:
        keyed = Client("127.0.1.6", key=server.key)
        street = Street(
            "network prefix", (Client("127.0.1.5"),), Client("127.0.1.6"), (Client("127.0.2.5"), Client(), keyed)
        )
        return visited(server, street, count)


def behind_a_proxy(folder: Path, count: int) -> list[Check]:
    """The same behind a trusted proxy, for users with IPv6; and a proxy that nobody has named is said."""
    with _served(folder / "proxy", "queen", anonymous=True, trusted_proxy=f"{PROXY}/32") as server:
        thief, neighbour, away = (
            Client(PROXY, forwarded=f"2001:db8:{part}") for part in ("1:1::5", "1:1:2:3:4:6", "1:2::5")
        )
        pretender = Client("127.0.3.5", forwarded="2001:db8:1:1::5")  # whoever says so without being a proxy
        street = Street("IPv6 prefix behind a proxy", (thief,), neighbour, (away, pretender))
        checks = visited(server, street, count)
        warnings = [line for line in server.lines() if line["event"] == "proxy nobody has named"]
        peers = [line["peer"] for line in warnings]
        named = peers == ["127.0.3.5"] and all("--trusted-proxy 127.0.3.5" in line["why"] for line in warnings)
        return [*checks, Check("a proxy that nobody has named is said once, with the flag", named, str(peers))]


def tenants(folder: Path, count: int, module: str = "queen") -> list[Check]:
    """Clients with keys in a group whose alarm has consequences."""
    with _served(folder / "tenants", module, groups=GROUPS) as server:
        thieves = tuple(Client(key=server.new_key(f"thief-{n}", ["tenant:7"])) for n in range(3))
        neighbour, away = (Client(key=server.new_key(name, [group])) for name, group in
                           (("bob", "tenant:7"), ("eve", "tenant:8")))  # fmt: skip
        return visited(server, Street("enforcing group", thieves, neighbour, (away, Client(key=server.key))), count)


def _served(folder: Path, module: str, **settings: Any) -> Any:
    folder.mkdir(parents=True)
    return started(folder, module=module, on_alarm="decoy", grpc_port=-1, **settings)
