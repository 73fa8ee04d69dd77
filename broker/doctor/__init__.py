"""What is wrong with a cluster, or soon will be: facts, checks and findings, for `barnabas doctor`. Pure."""
