"""How each class of the official code is built here, one file a family; a new golden vector needs no new code."""
