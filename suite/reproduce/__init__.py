"""One reproduction: request, plan, launch, record, verdict."""
