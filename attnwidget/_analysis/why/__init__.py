"""Why a head looked there: scores as sums over the parts of the residual stream."""
