"""The operations of the forward pass behind one Protocol. Choosing an implementation changes speed, never a bit."""
