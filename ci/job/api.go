package job

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"slipway/ci/report"
	"slipway/layers/bus"
)

// The requests of stations and people to a hub. Each is a subject api.<role>.<who>.<verb>, which NATS
// lets only that role and person publish. Answers have a field "error" if they failed.

// Role is what a person or a machine may do.
type Role string

// The roles. Each of the first three may all that the one before may.
const (
	Viewer   Role = "viewer"
	Operator Role = "operator"
	Admin    Role = "admin"
	AStation Role = "station"
	AHub     Role = "hub" // asks for nothing
)

// Roles lists all roles.
var Roles = []Role{Viewer, Operator, Admin, AStation}

// The verbs of stations.
const (
	VerbHello   = "hello"   // Hello -> Lease
	VerbAlive   = "alive"   // Alive -> Lease
	VerbAway    = "away"    // Alive -> nothing: the station ends in good order
	VerbBoards  = "boards"  // Boards -> nothing
	VerbMine    = "mine"    // Wait -> Changes: the jobs of the station that have not ended
	VerbClaim   = "claim"   // Change -> Change: queued to running, or running to running with another attempt
	VerbEnd     = "end"     // Change -> Change: to ended, with a result
	VerbRestore = "restore" // Change -> Change: a job that the hub lost, or what it has of it
	VerbLog     = "log"     // Log -> Log: where the next piece begins
	VerbReport  = "report"  // Report -> nothing
	VerbCard    = "card"    // Card -> nothing
	VerbRows    = "rows"    // RowsWish -> Rows: the rows of a table that a place may give to cards

	VerbRenewStation = "station.renew" // Renewal -> Joined
)

// The verbs of people.
const (
	VerbBoardList   = "board.list"    // ListWish -> BoardList
	VerbStationList = "station.list"  // nothing -> StationList
	VerbJobList     = "job.list"      // ListWish -> Changes
	VerbJobWait     = "job.wait"      // Wait with an ID -> Change: once the job differs from the revision
	VerbJobLog      = "job.log"       // LogWish -> Log
	VerbOpen        = "open"          // nothing -> Invitation: to sign in on the page
	VerbRenew       = "renew"         // Renewal -> Joined
	VerbJobAdd      = "job.add"       // Job -> Change
	VerbJobStop     = "job.stop"      // StopWish -> Change
	VerbRollouts    = "rollout.list"  // nothing -> Rollouts
	VerbRolloutShow = "rollout.show"  // RolloutWish -> RolloutState: once it differs from the revision
	VerbRolloutAdd  = "rollout.add"   // Rollout -> RolloutState
	VerbRolloutWish = "rollout.wish"  // RolloutWish -> RolloutState
	VerbRolloutBack = "rollout.back"  // RolloutBack -> RolloutState: of the new one
	VerbReportList  = "report.list"   // ReportWish -> Reports
	VerbReportGet   = "report.get"    // ReportWish -> Report
	VerbAbandon     = "job.abandon"   // StopWish with the station's name -> Change
	VerbDrain       = "station.drain" // Drain -> nothing
	VerbNameDevice  = "station.name"  // NameDevice -> nothing
	VerbInvite      = "invite"        // Person -> Invitation
	VerbRemove      = "remove"        // Person -> nothing
	VerbPeople      = "people"        // nothing -> People
	VerbAudit       = "audit"         // ListWish -> Audit
	VerbCards       = "card.list"     // CardsWish -> Cards
	VerbTables      = "table.list"    // nothing -> Tables
	VerbTable       = "table.show"    // TableWish -> Table
	VerbTableAdd    = "table.add"     // TableRows -> nothing
	VerbTableFree   = "table.free"    // TableWish with the station's name -> Table: the rows that are free again
)

// roles are the roles that may ask for the verbs, but for those of stations.
var roles = map[string]Role{
	VerbBoardList: Viewer, VerbStationList: Viewer, VerbJobList: Viewer, VerbJobWait: Viewer, VerbJobLog: Viewer, VerbOpen: Viewer, VerbRenew: Viewer,
	VerbRollouts: Viewer, VerbRolloutShow: Viewer, VerbReportList: Viewer, VerbReportGet: Viewer,
	VerbCards: Viewer, VerbTables: Operator, VerbTable: Operator, VerbTableAdd: Admin, VerbTableFree: Admin,
	VerbJobAdd: Operator, VerbJobStop: Operator, VerbRolloutAdd: Operator, VerbRolloutWish: Operator, VerbRolloutBack: Operator,
	VerbAbandon: Admin, VerbDrain: Admin, VerbNameDevice: Admin, VerbInvite: Admin, VerbRemove: Admin, VerbPeople: Admin, VerbAudit: Admin,
}

// RoleOf returns the role that may ask for a verb.
func RoleOf(verb string) Role { return cmp.Or(roles[verb], AStation) }

// May reports whether a role may ask for a verb.
func (r Role) May(verb string) bool {
	want := RoleOf(verb)
	return r == want || want != AStation && r != AStation && slices.Index(Roles, r) >= slices.Index(Roles, want)
}

// Subject returns the subject of a person's or station's request.
func Subject(who, verb string) string {
	return "api." + string(RoleOf(verb)) + "." + bus.Token(who) + "." + verb
}

// Hello is a station's first request. It is refused while another run has the lease.
type Hello struct {
	Station Station `json:"station"`
}

// Alive renews a lease that has this revision.
type Alive struct {
	Instance string `json:"instance"`
	Epoch    int64  `json:"epoch"`
	Revision uint64 `json:"revision"`

	FreeBytes int64 `json:"freeBytes,omitempty"`
}

// Follows reports whether this is the same run as another one of a station, or a later one of the same
// state folder. An instance is the folder's random name, "-", and the epoch.
func (a Alive) Follows(b Alive) bool {
	return a.Instance == b.Instance || PlaceOf(a.Instance) == PlaceOf(b.Instance) && a.Epoch > b.Epoch
}

// PlaceOf returns the random name of the state folder of an instance.
func PlaceOf(instance string) string {
	place, _, _ := strings.Cut(instance, "-")
	return place
}

// Lease is the engine's record that a station is alive. It expires by itself.
type Lease struct {
	Revision uint64 `json:"revision"`
	TTLMS    int64  `json:"ttlMs"`
	Draining bool   `json:"draining,omitempty"`

	Names []DeviceName `json:"names,omitempty"` // that admins gave
}

// Boards are all boards of a station.
type Boards struct {
	Instance string  `json:"instance"`
	Boards   []Board `json:"boards"`
}

// Wait asks for jobs. The hub answers at once if something is newer than Since, else when something
// is, or with nothing after a while. A station that knows nothing yet gets all at once. One that knows
// that there is nothing waits, too.
type Wait struct {
	ID    string `json:"id,omitempty"`
	Since uint64 `json:"since"`
	Known bool   `json:"known,omitempty"` // Since is of an answer, also if it is 0
}

// Change is a job and the revision of its key: the one that is expected in a request, and the new
// one in an answer.
type Change struct {
	Job      Job       `json:"job"`
	Revision uint64    `json:"revision"`
	Instance string    `json:"instance,omitempty"` // of the station that asks
	At       time.Time `json:"at,omitzero"`        // of the revision, by the engine's clock, in a list
}

// Changes are jobs, and the revision up to which they are known.
type Changes struct {
	Jobs  []Change `json:"jobs"`
	Until uint64   `json:"until"`
	Next  string   `json:"next,omitempty"` // of a list, as in BoardList
}

// Add adds the next part of a list, and returns where the one after it begins.
func (c *Changes) Add(part Changes) (after string) {
	c.Jobs = append(c.Jobs, part.Jobs...)
	return part.Next
}

// ListWish asks for a part of a list: what comes after a key, or the records before one. The others
// choose jobs, and Board also boards.
type ListWish struct {
	After   string `json:"after,omitempty"`
	Before  uint64 `json:"before,omitempty"`
	Station string `json:"station,omitempty"`
	Board   string `json:"board,omitempty"` // a board's name, or its kind
	Open    bool   `json:"open,omitempty"`  // those that have not ended
	Failed  bool   `json:"failed,omitempty"`
}

// ReadList asks for a list, part after part. A form that has no parts is asked for once.
func ReadList[List any](wish ListWish, ask func(ListWish) (List, error)) (all List, err error) {
	list, hasParts := any(&all).(interface {
		Add(part List) (after string)
	})
	for {
		part, err := ask(wish)
		if err != nil {
			return all, err
		}
		if !hasParts {
			return part, nil
		}
		if wish.After = list.Add(part); wish.After == "" {
			return all, nil
		}
	}
}

// Log is a piece of a job's log. Of a station's pieces, N and To are where they begin and end in the
// file there, and the hub keeps one only if it begins where the last one ended. For people, N is
// where the next piece begins.
type Log struct {
	ID   string `json:"id"`
	N    uint64 `json:"n"`
	To   uint64 `json:"to,omitempty"`
	Text string `json:"text"`
	More bool   `json:"more,omitempty"` // the job has not ended, or there are later pieces
}

// LogWish asks for the first piece of a job's log from N on, and waits for it unless Now is set.
type LogWish struct {
	ID  string `json:"id"`
	N   uint64 `json:"n"`
	Now bool   `json:"now,omitempty"`
}

// Report is a board's report.json.
type Report struct {
	ID   string `json:"id"`   // of the job
	Name string `json:"name"` // of the board
	Zstd []byte `json:"zstd,omitempty"`

	N  uint64    `json:"n,omitempty"` // number on the hub
	At time.Time `json:"at,omitzero"` // by the engine's clock
}

// MaxReportBytes limits a report that is not packed.
const MaxReportBytes = 32 << 20

// unpacker is for all goroutines.
var unpacker = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxMemory(MaxReportBytes))
})

// Only returns the report of the one board. It may come from anywhere.
func (r Report) Only() (report.Report, error) {
	unpack, err := unpacker()
	if err != nil {
		return report.Report{}, err
	}
	data, err := unpack.DecodeAll(r.Zstd, nil)
	if err != nil {
		return report.Report{}, fmt.Errorf("the report of %s: %w", r.Name, err)
	}
	all, err := report.Parse(data)
	if err != nil || len(all) != 1 {
		return report.Report{}, cmp.Or(err, fmt.Errorf("the report of %s has %d boards", r.Name, len(all)))
	}
	return all[0], nil
}

// ReportWish asks for the reports of a board, or for one: by its number, that of a job, or the newest.
type ReportWish struct {
	Station string `json:"station"`
	Name    string `json:"name"`
	N       uint64 `json:"n,omitempty"`
	Job     string `json:"job,omitempty"`
}

// Reports are the reports of a board without their content, the newest first.
type Reports struct {
	Reports []Report `json:"reports"`
}

// Card is what a flashing place's record has of one card: place.Entry. Later ones of a name replace it.
type Card struct {
	Station string          `json:"station,omitempty"` // in answers
	Place   string          `json:"place"`
	Name    string          `json:"name"`            // of its file in the record: DAY/FILE
	Table   string          `json:"table,omitempty"` // of the hub, that its row is of
	Holder  string          `json:"holder,omitempty"`
	Entry   json.RawMessage `json:"entry"`
}

// CardsWish asks for the cards of a day and a station, "" for all, from a number on.
type CardsWish struct {
	Day     string `json:"day,omitempty"`
	Station string `json:"station,omitempty"`
	N       uint64 `json:"n"`
}

// Cards are some of the cards that were asked for. N is where the others begin, 0 if there are none.
type Cards struct {
	Cards []Card `json:"cards"`
	N     uint64 `json:"n"`
}

// RowsWish asks for the rows that a place holds and no card has, and for free ones until it has Want.
// Holder names the place's record. So an answer that was lost costs no row, and a record that was
// lost gets no row that one of its cards may have.
type RowsWish struct {
	Instance string `json:"instance"`
	Table    string `json:"table"`
	Place    string `json:"place"`
	Holder   string `json:"holder"`
	Want     int    `json:"want"`
}

// Rows are lines of CSV.
type Rows struct {
	Head  string   `json:"head"`
	Lines []string `json:"lines"`
}

// TableRows adds rows to a table of identities, with the columns' names in the first line.
type TableRows struct {
	Table string `json:"table"`
	CSV   string `json:"csv"`
}

// TableWish asks for a table's rows, or for the rows that a station holds and no card has.
type TableWish struct {
	Table   string `json:"table"`
	From    int    `json:"from,omitempty"` // how many rows to leave out
	Station string `json:"station,omitempty"`
}

// Table is what a hub shows of a table's rows, without their cells.
type Table struct {
	Rows []TableRow `json:"rows"`
	More bool       `json:"more,omitempty"`
}

// TableRow is a row, who holds it, and the stamp of the card that has it.
type TableRow struct {
	Row     string    `json:"row"`
	Station string    `json:"station,omitempty"`
	Place   string    `json:"place,omitempty"`
	Card    string    `json:"card,omitempty"`
	Used    time.Time `json:"used,omitzero"`
}

// Tables are all tables of a hub, with the counts of their rows.
type Tables struct {
	Tables []TableCount `json:"tables"`
}

// TableCount counts the rows of a table.
type TableCount struct {
	Table    string `json:"table"`
	Rows     int    `json:"rows"`
	Reserved int    `json:"reserved"` // and no card has them yet
	Used     int    `json:"used"`
}

// StopWish asks for the end of a job.
type StopWish struct {
	ID      string `json:"id"`
	How     Stop   `json:"how,omitempty"`
	Station string `json:"station,omitempty"` // of an abandoned job, as the admin typed it
}

// BoardList is all boards of all stations, or a part of them.
type BoardList struct {
	Boards []HubBoard `json:"boards"`
	Next   string     `json:"next,omitempty"` // After of the next part; "" is none
}

// Add adds the next part, and returns where the one after it begins.
func (l *BoardList) Add(part BoardList) (after string) {
	l.Boards = append(l.Boards, part.Boards...)
	return part.Next
}

// HubBoard is a board as the hub knows it.
type HubBoard struct {
	Board
	Station string `json:"station"`
	Heard   bool   `json:"heard"` // its station has a lease
}

// StationList is all stations.
type StationList struct {
	Stations []HubStation `json:"stations"`
}

// HubStation is a station as the hub knows it.
type HubStation struct {
	Station
	Heard bool      `json:"heard"`       // it has a lease
	At    time.Time `json:"at,omitzero"` // when it was last heard, by the engine's clock
}

// Drain asks a station to take no more jobs.
type Drain struct {
	Station string `json:"station"`
	Back    bool   `json:"back,omitempty"` // take jobs again
}

// NameDevice asks for a name of a device that a station announces, or with "" that it has none.
type NameDevice struct {
	Station string `json:"station"`
	Device  string `json:"device"` // as it is announced
	Name    string `json:"name"`
	Board   string `json:"board"` // the kind
}

// Person is a person or a station that may ask the hub.
type Person struct {
	V       Form      `json:"v"`
	Name    string    `json:"name"`
	Role    Role      `json:"role,omitempty"`
	Key     string    `json:"key,omitempty"` // public; none before the first join, and after a removal
	By      string    `json:"by,omitempty"`  // who invited or removed
	ValidMS int64     `json:"validMs,omitempty"`
	Revoked []string  `json:"revoked,omitempty"` // keys of earlier joins
	Since   time.Time `json:"since,omitzero"`
	Until   time.Time `json:"until,omitzero"` // of an invitation
}

// Invitation is what a person or station needs to join, once.
type Invitation struct {
	Secret string `json:"secret"`
}

// People are all who may ask the hub.
type People struct {
	People  []Person `json:"people"`
	Invited []Person `json:"invited,omitempty"` // whose invitation nobody took yet
}

// Join is the request of somebody who was invited.
type Join struct {
	Secret string `json:"secret"`
	Key    string `json:"key"` // public
}

// Renewal asks where the hubs are, and for a new JWT of the same key.
type Renewal struct {
	JWT bool `json:"jwt"`
}

// Joined is the answer to Join, and to the renewal of an identity.
type Joined struct {
	Name      string    `json:"name"`
	Role      Role      `json:"role"`
	JWT       string    `json:"jwt,omitempty"`
	Addresses []string  `json:"addresses,omitempty"` // of NATS, of all hubs
	Pages     []string  `json:"pages,omitempty"`     // of all hubs
	Hub       *HubShare `json:"hub,omitempty"`       // for another hub of the cluster
}

// HubShare is what the hubs of a cluster have in common. It is secret.
type HubShare struct {
	Hubs      []string `json:"hubs"`      // HOST:PORT of each, for the others
	Secret    []byte   `json:"secret"`    // of all keys
	Authority string   `json:"authority"` // certificate and key, PEM
}

// HubPlace is where a hub is reached, each HOST:PORT.
type HubPlace struct {
	Address string `json:"address"` // NATS
	Page    string `json:"page"`
}
