"""Reports as data: certificates, diagrams, JSON."""
