"""Token stores: documents to tokens on disk, and back to any piece of their line."""
