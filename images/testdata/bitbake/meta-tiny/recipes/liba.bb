SUMMARY = "a"
