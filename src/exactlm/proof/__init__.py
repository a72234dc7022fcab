"""What can be shown of an answer afterwards: verification of receipts, and the ledger that keeps them."""
