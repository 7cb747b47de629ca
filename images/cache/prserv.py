# Runs the PR server of the bitbake whose lib is argv[1] in the foreground: bitbake-prserv would
# detach it, and a daemon outlives whoever started it. Its database is argv[2], its
# address argv[3] and argv[4].
import logging, sys

sys.path.insert(0, sys.argv[1])
import prserv.serv

# It would log every client, and a log that is never cut would fill the disk.
logging.disable(logging.INFO)
logging.basicConfig()
database, host, port = sys.argv[2], sys.argv[3], int(sys.argv[4])
server = prserv.serv.PRServer(database)
server.start_tcp_server(host, port)
server.serve_forever()
