"""`report.html` of a run: curves, confusion matrix and the worst mistakes, in one file without links to the outside."""

import base64
import io
from pathlib import Path

import jinja2
import numpy as np
import torch
from PIL import Image

from mixwise.config import MAX_PIXELS, Preprocess, Train
from mixwise.data import Items, Stored, decode, unnormalize
from mixwise.files import write_text
from mixwise.prediction import Predictor
from mixwise.report.plots import confusion_matrix, curves
from mixwise.tasks.classify import Scores
from mixwise.training.run import Run

MISTAKES = 24
SEEN = 8


def write_report(
    run: Run, config: Train, items: Items, predictor: Predictor, probabilities: torch.Tensor, scores: Scores
) -> Path:
    """Write report.html for the best weights of a run, from their answers (n, classes) to validation items."""
    target = torch.as_tensor(items.labels)
    page = _template().render(
        config=config,
        header=predictor.header,
        scores=scores,
        worst_classes=sorted(scores.classes, key=lambda c: (c.f1, c.name)),
        curves=curves(run.read_metrics()),
        confusion=confusion_matrix(scores.confusion, predictor.classes),
        seen=[_as_seen(source, predictor) for source in items.sources[:: -(-len(items) // SEEN)]],
        mistakes=_mistakes(probabilities, target, items, predictor),
        wrong=round((1 - scores.top1) * scores.images),
        folder=run.folder.name,
    )
    write_text(run.report_file, page)
    return run.report_file


def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("mixwise.report", "templates")
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined).get_template("run.html")


def _mistakes(probabilities: torch.Tensor, target: torch.Tensor, items: Items, predictor: Predictor) -> list[dict]:
    """The wrong answers given with the least belief in the truth, worst first."""
    belief = probabilities.gather(1, target[:, None]).squeeze(1)
    answers = probabilities.argmax(dim=1)
    wrong = [i for i in belief.argsort(stable=True).tolist() if answers[i] != target[i]]
    return [
        {
            "picture": thumbnail(items.sources[i], predictor.preprocess, max_pixels=predictor.max_pixels),
            "name": items.names[i],
            "truth": predictor.classes[int(target[i])],
            "answer": predictor.classes[int(answers[i])],
            "probability": float(probabilities[i].max()),
        }
        for i in wrong[:MISTAKES]
    ]


def thumbnail(
    source: str | np.ndarray | Stored, pre: Preprocess, side: int = 112, *, max_pixels: int = MAX_PIXELS
) -> str:
    """A picture as a small PNG or JPEG data address; tiny pictures are enlarged in whole pixels."""
    hint = side, side
    image = decode(source, channels=pre.channels, background=pre.background, hint=hint, max_pixels=max_pixels)
    image = image.convert("RGB")
    return _address(image, side)


def _as_seen(source: str | np.ndarray | Stored, predictor: Predictor) -> str:
    """A picture after its preprocessing, as `thumbnail` gives it; without its alpha."""
    pre = predictor.preprocess
    image = decode(source, channels=pre.channels, background=pre.background, max_pixels=predictor.max_pixels)
    pixels = unnormalize(predictor.transform(image), pre)[:3].permute(1, 2, 0).numpy()
    return _address(decode(pixels), side=112)


def _address(image: Image.Image, side: int) -> str:
    scale = side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    image = image.resize(size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    kind = "PNG" if scale > 2 else "JPEG"
    image.save(stream, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"
