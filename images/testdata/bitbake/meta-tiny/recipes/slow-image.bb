COMPILE = "sleep 300"
