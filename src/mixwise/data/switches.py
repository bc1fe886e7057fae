"""Pillow's global switches as the decoder needs them, for as long as any thread decodes."""

import threading
import warnings

from PIL import Image, ImageFile


class Switches:
    """Whole files only, a limit of pixels that raises, no warnings on the terminal.

    They belong to the whole process: the first thread that enters sets them, the last one that leaves puts them back.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0

    def enter(self, max_pixels: int) -> None:
        """One more thread decodes; where their limits differ, the largest holds."""
        with self.lock:
            if self.inside == 0:
                self.kept = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
                self.caught = warnings.catch_warnings()
                self.caught.__enter__()
                warnings.filterwarnings("ignore", module=r"PIL\.")
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = max_pixels, False
            Image.MAX_IMAGE_PIXELS = max(max_pixels, Image.MAX_IMAGE_PIXELS or 0)
            self.inside += 1

    def leave(self) -> None:
        """One thread fewer."""
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = self.kept
                self.caught.__exit__(None, None, None)


SWITCHES = Switches()
"""Those of this process."""
