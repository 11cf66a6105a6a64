"""LinearMethods: how y = x W^T + b is stored and computed. One file per method; layers know shapes only."""
