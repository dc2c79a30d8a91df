"""Why a run is slow: a measured step beside the predicted one, and what would explain the difference."""
