"""Training: preparing a run, its optimizer, checkpoints and validation, and the loop over batches.

`settings` needs no TensorFlow; the other modules import it.
"""
