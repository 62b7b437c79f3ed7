"""What a process has from the world: time, threads and chance, which a simulation replaces; crash points, and what is said seldom."""
