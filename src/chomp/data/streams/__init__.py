"""Training straight from documents, without a token store."""
