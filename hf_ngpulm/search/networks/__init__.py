"""The prediction and joint networks of transducers, and the code that all transducer searches share."""
