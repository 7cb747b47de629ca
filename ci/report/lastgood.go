package report

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"slipway/layers/localfile"
	"slipway/layers/plaintext"
)

// MetricsFolder is the folder, beside the reports, with a file of metrics for each board: those of
// its last run that passed. Boards of one kind share the artifact, but not their links and disks.
const MetricsFolder = "metrics"

// HistoryFile returns the path of a board's metrics by serial or else name, or "" without dir.
func HistoryFile(dir string, id Identity, name string) string {
	if dir == "" {
		return ""
	}
	key := plaintext.Either(id.Serial != "", "serial-"+id.Serial, "host-"+name)
	return filepath.Join(dir, MetricsFolder, fileName(key)+".json")
}

// fileName returns a text as a part of a file name. If it is longer than 80 bytes or has unsafe
// characters, it gets a digest, so that different texts have different names. "", ".", ".." stay.
func fileName(text string) string {
	safe := strings.Map(func(r rune) rune {
		if r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_.", r)) {
			return r
		}
		return '_'
	}, text)
	if safe == text && len(text) <= 80 {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return safe[:min(len(safe), 80)] + "~" + hex.EncodeToString(sum[:6])
}

// History maps a metric (see HistoryKey) to its value in the last run that passed.
type History map[string]float64

func HistoryKey(suite, check, metric string) string { return suite + "/" + check + "/" + metric }

// ReadHistory reads a board's file of metrics. It returns nil for "" or if there is no such file.
func ReadHistory(file string) (History, error) {
	if file == "" {
		return nil, nil
	}
	data, err := localfile.Read(file, maxReportBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var h History
	if err := json.Unmarshal(data, &h); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return h, nil
}

// Save writes the metrics of a report to file, together with older metrics that the report lacks.
// The caller checks that the report passed. Save writes nothing if file is "" or without metrics.
func (h History) Save(file string, r Report) error {
	all := maps.Clone(h)
	if all == nil {
		all = History{}
	}
	n := 0
	for _, s := range r.Suites {
		for _, c := range s.Checks {
			for _, m := range c.Metrics {
				all[HistoryKey(s.Name, c.Name, m.Name)] = m.Value
				n++
			}
		}
	}
	if file == "" || n == 0 {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return localfile.WriteJSON(file, all, 0o644)
}
