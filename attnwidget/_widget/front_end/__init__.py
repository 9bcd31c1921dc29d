"""The boundary to the front-end: requests, files and saved views."""
