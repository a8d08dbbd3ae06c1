"""The paper's convergence claims, checked with the real engine on problems with known answers."""
