"""What is recorded: a rank's ``log`` of calls, ``moments`` inside of them, and text for people."""
