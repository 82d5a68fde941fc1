"""What the commands share: which relay, how they end, and how they show what comes from outside."""
