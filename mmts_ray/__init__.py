"""Search, and trust, the hyperparameters of multi-modal contrastive learning."""

__version__ = "0.1.0"
