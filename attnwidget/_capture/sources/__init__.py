"""Follow what is written into the residual stream to q, k and v, while a model runs."""
