package tinyclone

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"slipway/images"
)

// Isar fills a folder with a project of a board that Isar's bitbake builds. The layer is
// that of Slipway's clone, the folder that this runs in. SLIPWAY_LOCAL=isar=FOLDER names a
// checkout of Isar where no server is to be asked.
func Isar(dir string, spec images.Spec) (Clone, error) {
	if os.Geteuid() == 0 {
		return Clone{}, errors.New("bitbake does not build as root\nnext: run this as a normal user in the group sbuild")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Clone{}, err
	}
	c := Clone{Dir: dir, Board: spec.Board, Built: images.Options{Dir: filepath.Join(dir, "build")}.BoardDir(spec)}
	if err := os.MkdirAll(filepath.Dir(c.projectFile()), 0o755); err != nil {
		return Clone{}, err
	}
	return c, c.WriteIsar("")
}

func (c Clone) projectFile() string {
	return filepath.Join(c.Dir, "images/boards", c.Board, "kas.yml")
}

// WriteIsar writes the project file with lines for conf/local.conf.
func (c Clone) WriteIsar(conf string) error {
	source, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	text := fmt.Sprintf(`header:
  version: 14
  includes: [{repo: slipway, file: images/boards/%s/kas.yml}]
repos:
  slipway: {path: %q}
`, c.Board, source)
	if conf != "" {
		text += "local_conf_header:\n  trial: |\n    " + strings.ReplaceAll(strings.TrimSpace(conf), "\n", "\n    ") + "\n"
	}
	return os.WriteFile(c.projectFile(), []byte(text), 0o644)
}
