"""One page about one evaluation, in one file without links to the outside."""

import base64
import io

import jinja2
import numpy as np
from PIL import Image

from mixwise.config import MAX_PIXELS, Preprocess, Train
from mixwise.data import Stored, decode, unnormalize
from mixwise.evaluation import Evaluation
from mixwise.prediction import Predictor
from mixwise.report.plots import confusion_matrix, curves, reliability, svg

MISTAKES = 24
SEEN = 8


def page(
    found: Evaluation, title: str, *, settings: Train | None = None, epochs: list[dict[str, str]] | None = None
) -> str:
    """The text of the page.

    Args:
        settings, epochs: of the training that it stands at the end of; the rows of its metrics.csv.
    """
    predictor, scores = found.predictor, found.scores
    mistakes = predictor.task.mistakes(found.probabilities, found.target, predictor.classes, predictor.decision)
    table = scores.table().weakest_first()
    shown = [
        {
            "picture": thumbnail(found.items.sources[m.index], predictor.preprocess, max_pixels=predictor.max_pixels),
            "name": found.items.names[m.index],
            "said": m.said,
        }
        for m in mistakes[:MISTAKES]
    ]
    return _template().render(
        title=title,
        found=found,
        header=predictor.header,
        scores=scores,
        columns=table.columns,
        rows=table.cells(),
        curves=svg(curves(epochs, predictor.task.metric)) if epochs is not None else None,
        confusion=None if scores.confusion is None else svg(confusion_matrix(scores.confusion, predictor.classes)),
        reliability=svg(reliability(scores.reliability)),
        seen=[_as_seen(source, predictor) for source in found.items.sources[:: -(-len(found.items) // SEEN)]],
        mistakes=shown,
        wrong=len(mistakes),
        settings=None if settings is None else settings.to_toml(),
    )


def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("mixwise.report", "templates")
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined).get_template(
        "page.html"
    )


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
