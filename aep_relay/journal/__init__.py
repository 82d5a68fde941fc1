"""Events and files: the archive that is written, the logs that are followed (AEP-0003 §3.1)."""
