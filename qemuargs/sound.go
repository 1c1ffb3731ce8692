package qemuargs

// SoundModel is a kind of sound card.
type SoundModel string

// Sound cards.
const (
	ICH9 SoundModel = "ich9"
	AC97 SoundModel = "ac97"
)

// Sound is a sound card that nobody hears.
type Sound struct {
	Model SoundModel `json:"model"`
	PCI   PCIAddress `json:"pci"`
}

const soundID, soundBackend = "sound0", "audio0"

type soundProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	pciPlace
	Audiodev string `json:"audiodev,omitempty"`
}

type codecProps struct {
	Driver   string `json:"driver"`
	ID       string `json:"id"`
	Bus      string `json:"bus"`
	CAD      int    `json:"cad"`
	Audiodev string `json:"audiodev"`
}

func (s *Sound) args() []Arg {
	if s == nil {
		return nil
	}
	args := []Arg{{Flag: "-audiodev", Value: Options{{Value: "none"}, {Key: "id", Value: soundBackend}}}}
	if s.Model == AC97 {
		return append(args, Arg{Flag: "-device", Value: soundProps{Driver: "AC97", ID: soundID, pciPlace: s.PCI.place(), Audiodev: soundBackend}})
	}
	return append(args, Arg{Flag: "-device", Value: soundProps{Driver: "ich9-intel-hda", ID: soundID, pciPlace: s.PCI.place()}},
		Arg{Flag: "-device", Value: codecProps{Driver: "hda-duplex", ID: soundID + "-codec0", Bus: soundID + ".0", CAD: 0, Audiodev: soundBackend}})
}
