# Prints what a master of Buildbot has in its database, as JSON.
import json
import sqlite3
import sys

db = sqlite3.connect("file:%s?mode=ro" % sys.argv[1], uri=True, timeout=20)
db.row_factory = sqlite3.Row


def rows(query):
    return [dict(r) for r in db.execute(query)]


def text(row):
    row["text"] = row["text"].decode("utf-8", "replace") if isinstance(row["text"], bytes) else row["text"]
    return row


print(json.dumps({
    "polled": bool(rows("select 1 from object_state where name = 'lastRev' and value_json != '{}'")),
    "connected": bool(rows("select 1 from connected_workers")),
    "builds": rows("select builds.id, builders.name as builder, complete_at is not null as complete from builds join builders on builders.id = builderid order by builds.id"),
    "steps": rows("select id, buildid as build, name, results, started_at as started, complete_at as ended from steps order by id"),
    "summaries": [text(r) for r in rows("select stepid as step, content as text from logs join logchunks on logid = logs.id where logs.name = 'summary' order by logid, first_line")],
}))
