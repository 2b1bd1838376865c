"""Files that serving engines read: tuned kernel configurations and deployment manifests."""
