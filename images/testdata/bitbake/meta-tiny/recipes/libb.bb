SUMMARY = "b"
