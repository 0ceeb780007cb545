"""Applications around a small guard, and the example's with the number of the process that answers."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from fastapi import Depends, FastAPI, Request
from starlette.testclient import TestClient
from torch import Tensor

from queen.web import Ask, Guarded, from_key

OWNERS = {"a": "alice", "b": "bob", "m": "mallory"}
by_key = from_key(OWNERS.get)


def make_app(guard: Guarded, *, plain: bool = False) -> FastAPI:
    """An application that answers batches; `plain` leaves out what closes the guard and writes the bodies."""
    given: dict[str, Any] = (
        {} if plain else {"lifespan": guard.lifespan, "exception_handlers": guard.exception_handlers}
    )
    app, asking = FastAPI(**given), Depends(guard)  # in a variable: annotations are text here

    @app.post("/predict")
    async def predict(request: Request, ask: Ask = asking) -> list[list[float]]:
        return (await ask(torch.tensor(await request.json()))).probabilities.tolist()

    @app.post("/arrays")
    async def arrays(request: Request, ask: Ask = asking) -> list[list[float]]:
        return (await ask(np.array(await request.json()))).probabilities.tolist()

    @app.post("/waiting")
    def waiting(x: list[Any], ask: Ask = asking) -> list[list[float]]:
        return ask.now(torch.tensor(x)).probabilities.tolist()

    @app.post("/failing")
    async def failing(request: Request, ask: Ask = asking) -> None:
        await ask(torch.tensor(await request.json()))
        raise ZeroDivisionError

    @app.get("/health")
    async def health() -> str:
        return "well"

    return app


def post(app: TestClient, x: Tensor, key: str | None = "a", path: str = "/predict", **headers: str) -> Any:
    """The response to a batch of the owner of a key."""
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    return app.post(path, json=x.tolist(), headers=headers)


def __getattr__(name: str) -> Any:
    """`app`: the example's, loaded only by the server that is told to; each response names its process."""
    if name != "app":
        raise AttributeError(name)
    from examples.fastapi_app import app

    @app.middleware("http")
    async def name_process(request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-process"] = str(os.getpid())
        return response

    return app
