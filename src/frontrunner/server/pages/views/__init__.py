"""What each page shows, as frozen values: read from the store or estimated by formulas, without any HTML."""
