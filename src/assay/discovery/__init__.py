"""Discovery: scores of edges, scores of heads."""
