"""A digit classifier in a FastAPI application; the lines that end in `# queen` are what its protection changed.

After examples/protect_digits.py: uvicorn --app-dir examples fastapi_app:app --workers 2
"""

import os
from typing import Annotated

import torch
from annotated_types import Len
from fastapi import Depends, FastAPI
from pydantic import BaseModel

from queen.web import Ask, from_key, guarded  # queen

OWNERS = {"key-of-alice": "alice", "key-of-mallory": "mallory"}  # yours: a look into the table of your users
BUNDLE, LEDGER = os.environ.get("BUNDLE", "digits"), os.environ.get("LEDGER", "clients.sqlite")

guard = guarded(BUNDLE, ledger=LEDGER, client=from_key(OWNERS.get))  # queen
app = FastAPI(lifespan=guard.lifespan, exception_handlers=guard.exception_handlers)  # queen

Image = Annotated[list[Annotated[list[float], Len(8, 8)]], Len(8, 8)]  # rows of pixels from 0 to 1


class Question(BaseModel):
    """What clients send: some images."""

    images: list[Image]


@app.post("/predict")
async def predict(question: Question, ask: Annotated[Ask, Depends(guard)]) -> dict[str, list]:  # queen
    """The digit in every image, and how probable each digit is."""
    x = torch.tensor(question.images).unsqueeze(1)
    reply = await ask(x)  # queen: it was `model(x).softmax(1)`
    probabilities = reply.probabilities.double().round(decimals=6)  # else JSON has 0.27 as 0.27000001072883606
    return {"digits": probabilities.argmax(1).tolist(), "probabilities": probabilities.tolist()}
