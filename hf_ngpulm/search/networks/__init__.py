"""The prediction and joint networks of transducers, and the parts that all transducer searches share."""
