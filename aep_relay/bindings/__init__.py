"""The bindings of AEP-0003 §3 on the data port, and the router from path to binding."""
