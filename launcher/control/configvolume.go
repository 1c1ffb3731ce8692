package control

// ConfigVolume is a volume of files of which the launcher makes a disk image when it is asked to inspect the volume. Package
// layout says where the files and the image are.
type ConfigVolume struct {
	Volume string `json:"volume"`
	// Label of the image's file system.
	Label string `json:"label"`
	// AnswerFile: one of Windows' answer files must be among the files.
	AnswerFile bool `json:"answerFile,omitempty"`
}
